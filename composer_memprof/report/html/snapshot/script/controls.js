import { byId, make } from '../../script/dom.js';

/** @import { Actions } from './types.d.ts' */
/** @import { Grouping } from './model/groupings.js' */
/** @import { Model } from './model/model.js' */

const SINGLE_BLOCKS = '';

/** The form above the timeline: device, colors, axis, range and filters. */
export class Controls {
  /**
   * @param {() => Model} modelOf
   * @param {Actions & {openDevice(number: number): void, reset(): void, refresh(): void, listBy(grouping: Grouping | null): void}} actions
   */
  constructor(modelOf, actions) {
    this.modelOf = modelOf;
    this.actions = actions;
    this.device = byId('device', HTMLSelectElement);
    this.colorBy = byId('key', HTMLSelectElement);
    this.listBy = byId('rows-by', HTMLSelectElement);
    this.axis = byId('axis', HTMLSelectElement);
    this.from = byId('from', HTMLInputElement);
    this.to = byId('to', HTMLInputElement);
    this.smallest = byId('smallest', HTMLInputElement);
    this.text = byId('find', HTMLInputElement);
    /** @type {HTMLInputElement | null} being typed in, and so left alone */
    this.typedIn = null;
    this.listen();
  }

  /** @param {Model} model of another device */
  open({ groupings, palette, listedBy, timeline }) {
    const options = () => groupings.map(({ name }) => make('option', { value: name, textContent: name }));
    this.colorBy.replaceChildren(...options());
    this.colorBy.value = palette.grouping.name;
    this.listBy.replaceChildren(...options(), make('option', { value: SINGLE_BLOCKS, textContent: 'single block' }));
    this.listBy.value = listedBy?.name ?? SINGLE_BLOCKS;
    this.axis.options[0].disabled = timeline.time === null;
    this.showAxis();
  }

  clearFilters() {
    this.smallest.value = this.text.value = '';
    this.smallest.setCustomValidity('');
    this.modelOf().filters.clear();
  }

  showAxis() {
    this.axis.value = this.modelOf().view.axis.time ? 'time' : 'event';
  }

  showRange() {
    const { view } = this.modelOf();
    const [unit, digits] = view.axis.time ? [1000, 3] : [1, 0];
    if (this.typedIn !== this.from) this.from.value = String(+(view.from / unit).toFixed(digits));
    if (this.typedIn !== this.to) this.to.value = String(+(view.to / unit).toFixed(digits));
    byId('unit', HTMLElement).textContent = view.axis.time ? 'ms' : 'events';
  }

  readRange() {
    const { view } = this.modelOf();
    const unit = view.axis.time ? 1000 : 1;
    const [from, to] = [this.from, this.to].map(({ value }) => Number(value.replaceAll(',', '')) * unit);
    const isRange = Number.isFinite(from) && Number.isFinite(to) && from < to;
    for (const input of [this.from, this.to]) {
      input.setCustomValidity(isRange ? '' : 'two numbers, the second one larger');
    }
    if (!isRange) return;
    view.show(from, to);
    this.actions.redraw();
  }

  readFilters() {
    const { filters } = this.modelOf();
    const isSize = filters.setSmallest(this.smallest.value);
    this.smallest.setCustomValidity(isSize ? '' : 'a size such as 512 KiB');
    filters.setText(this.text.value);
    this.actions.refresh();
  }

  listen() {
    const { actions } = this;
    byId('controls', HTMLFormElement).addEventListener('submit', (event) => event.preventDefault());
    byId('reset', HTMLButtonElement).addEventListener('click', () => actions.reset());
    this.device.addEventListener('change', () => actions.openDevice(Number(this.device.value)));
    this.colorBy.addEventListener('change', () => {
      const model = this.modelOf();
      const grouping = model.grouping(this.colorBy.value);
      if (grouping) model.palette = model.paletteOf(grouping);
      actions.refresh();
    });
    this.listBy.addEventListener('change', () => {
      actions.listBy(this.modelOf().grouping(this.listBy.value));
    });
    this.axis.addEventListener('change', () => {
      this.modelOf().view.setAxis(this.axis.value === 'time');
      actions.redraw();
    });
    for (const input of [this.from, this.to]) {
      input.addEventListener('input', () => {
        this.typedIn = input;
      });
      input.addEventListener('change', () => {
        this.typedIn = null;
        this.readRange();
      });
    }
    for (const input of [this.smallest, this.text]) input.addEventListener('input', () => this.readFilters());
  }
}
