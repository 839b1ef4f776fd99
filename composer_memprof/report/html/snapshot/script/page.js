import { byId } from '../../script/dom.js';
import { Chart } from './chart/chart.js';
import { listenToChart } from './chart/chart_input.js';
import { Overview } from './chart/overview.js';
import { Controls } from './controls.js';
import { FlameGraph } from './flame_graph/flame_graph.js';
import { Details } from './list/details.js';
import { drawLegend } from './list/legend.js';
import { BlockList } from './list/list.js';
import { NOTHING } from './model/ids.js';
import { Model } from './model/model.js';
import { SegmentMap } from './segments/segment_map.js';

/** @import { Grouping } from './model/groupings.js' */
/** @import { MomentName, Recording, Selection } from './types.d.ts' */

/** After a jump to a moment, at most this share of the timeline is in view. */
const JUMP_WIDTH = 1 / 5;

/** The parts of the page, and what they ask of each other. */
export class Page {
  /** @param {Recording} recording */
  constructor(recording) {
    this.recording = recording;
    this.darkMode = matchMedia('screen and (prefers-color-scheme: dark)');
    this.model = new Model(recording, 0, this.darkMode.matches);
    const modelOf = () => this.model;
    this.chart = new Chart();
    this.overview = new Overview(modelOf, this.chart, this);
    this.controls = new Controls(modelOf, this);
    this.list = new BlockList(modelOf, this);
    this.details = new Details(this);
    this.flameGraph = new FlameGraph(modelOf, this);
    this.segmentMap = document.getElementById('segments') ? new SegmentMap(modelOf, this) : null;
    this.frame = 0;
    listenToChart(this.chart, modelOf, this);
    this.listen();
    this.openModel();
  }

  /** @param {number} number */
  openDevice(number) {
    this.model = new Model(this.recording, number, this.darkMode.matches);
    this.openModel();
  }

  openModel() {
    const { model } = this;
    document.querySelectorAll('.facts').forEach((facts, index) => {
      facts.toggleAttribute('hidden', index !== model.number);
    });
    byId('at-failure', HTMLElement).hidden = model.timeline.failure === null;
    this.controls.clearFilters();
    this.controls.open(model);
    this.list.reset();
    this.flameGraph.reset();
    this.segmentMap?.open(model);
    this.refresh();
  }

  // -- drawing --------------------------------------------------------------------------------------------------------

  /** Draws the timeline with the next frame. */
  redraw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.chart.draw(this.model);
      this.overview.draw(this.model);
      this.controls.showRange();
      if (!document.body.dataset.drawn) performance.mark('drawn');
      document.body.dataset.drawn = 'yes';
    });
  }

  /** Draws the parts about the listed moment. */
  relist() {
    this.list.draw(this.model);
    drawLegend(this.model, this);
    this.flameGraph.renew();
    this.segmentMap?.draw();
  }

  refresh() {
    this.redraw();
    this.relist();
    this.details.draw(this.model);
  }

  // -- actions --------------------------------------------------------------------------------------------------------

  reset() {
    const { model } = this;
    model.selection = null;
    model.view.showAll();
    this.controls.clearFilters();
    this.flameGraph.reset();
    this.refresh();
  }

  /** @param {Selection | null} selection */
  select(selection) {
    this.model.selection = selection;
    this.redraw();
    this.flameGraph.mark();
    this.segmentMap?.draw();
    this.details.draw(this.model);
  }

  /**
   * @param {number} moment
   * @param {MomentName} name
   */
  listAt(moment, name) {
    const { model } = this;
    [model.moment, model.listed] = [moment, name];
    this.relist();
    // A group's bytes are those of the listed moment.
    if (model.selection && 'grouping' in model.selection) this.details.draw(model);
  }

  /** @param {Grouping | null} grouping null lists single blocks */
  listBy(grouping) {
    this.model.listedBy = grouping;
    this.list.reset();
    this.list.draw(this.model);
  }

  /**
   * A click on the timeline.
   *
   * @param {number} id
   * @param {number} moment
   */
  click(id, moment) {
    const { model } = this;
    model.clicked = moment;
    if (id === NOTHING) this.select(null);
    else this.select(id >= 0 ? { block: id } : model.lineOf(id));
    if (model.listed === 'clicked') this.listAt(moment, 'clicked');
    else this.list.draw(model);
  }

  /** @param {number} block */
  showLife(block) {
    this.model.view.showLife(block);
    this.redraw();
  }

  /**
   * @param {number | null} moment
   * @param {MomentName} name
   */
  jumpTo(moment, name) {
    if (moment === null) return;
    const { view } = this.model;
    view.showAround(view.axis.placeOf(moment), Math.min(view.width, view.axis.length * JUMP_WIDTH));
    this.redraw();
    this.listAt(moment, name);
  }

  listen() {
    /** @type {(selector: string, act: () => void) => void} */
    const onClick = (selector, act) => {
      for (const button of document.querySelectorAll(selector)) button.addEventListener('click', act);
    };
    onClick('.to-failure', () => this.jumpTo(this.model.timeline.failure, 'failure'));
    onClick('.to-peak', () => this.jumpTo(this.model.timeline.peak, 'peak'));
    onClick('#at-failure', () => this.listAt(this.model.timeline.failure ?? 0, 'failure'));
    onClick('#at-peak', () => this.listAt(this.model.timeline.peak, 'peak'));
    onClick('#at-moment', () => this.listAt(this.model.clicked ?? 0, 'clicked'));
    new ResizeObserver(() => this.redraw()).observe(this.chart.canvas);
    this.darkMode.addEventListener('change', () => {
      this.model.setDark(this.darkMode.matches);
      this.refresh();
    });
  }
}
