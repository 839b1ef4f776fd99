import { byId } from '../../script/dom.js';
import { unpack } from '../../script/packed.js';
import { busiestThread } from './calls.js';
import { CallsPage } from './calls_page.js';

/** @import { Trace } from './types.d.ts' */

unpack(byId('data', HTMLScriptElement).textContent ?? '')
  .then((data) => {
    const trace = /** @type {Trace} */ (data);
    const { counts, busiest } = busiestThread(trace);
    trace.header.threads.forEach((name, thread) => {
      const isBusiest = thread === busiest;
      if (counts[thread]) byId('thread', HTMLSelectElement).add(new Option(name, String(thread), isBusiest, isBusiest));
    });
    if (trace.columns.thread.length) new CallsPage(trace, busiest);
    else document.body.dataset.drawn = '0';
  })
  .catch((error) => {
    byId('found', HTMLElement).textContent = `This browser cannot show the page: ${error.message}`;
  });
