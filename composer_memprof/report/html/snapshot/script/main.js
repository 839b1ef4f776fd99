import { byId, make } from '../../script/dom.js';
import { unpack } from '../../script/packed.js';
import { Page } from './page.js';

unpack(byId('data', HTMLScriptElement).textContent ?? '')
  .then((recording) => new Page(recording))
  .catch((error) => {
    const textContent = `This browser cannot show the page: ${error.message}`;
    byId('chosen', HTMLElement).replaceChildren(make('p', { className: 'error', textContent }));
  });
