'use strict';
// The legend, the list of what is allocated at a moment, and the panel of what is chosen. Text from the snapshot
// enters the page by textContent alone.

const ROWS = 25;
const LEGEND = 8;

class Lists extends Canvases {
  groupsAt(moment, by) {
    const { timeline } = this;
    const groups = new Map();
    const add = (id, bytes) => {
      const key = this.keyOf(id, by);
      const group = groups.get(key) ?? { key, bytes: 0, blocks: 0, summed: false, largest: id };
      group.bytes += bytes;
      if (id >= 0) group.blocks += 1;
      else group.summed = true;
      if (id >= 0 && (group.largest < 0 || timeline.size[id] > timeline.size[group.largest])) group.largest = id;
      groups.set(key, group);
    };
    for (const block of timeline.liveAt(moment)) if (this.isShown(block)) add(block, timeline.size[block]);
    const known = lastAtMost(timeline.smallerMoments, moment);
    for (let curve = 0; curve <= timeline.curves.length; curve++) {
      const bytes = timeline.smallerAt(curve, known);
      if (bytes && this.isCurveShown(curve)) add(FIRST_CURVE - curve, bytes);
    }
    return [...groups.values()].sort((one, other) => other.bytes - one.bytes);
  }

  list() {
    const { timeline, moment } = this;
    const total = timeline.total[moment];
    element('live-title').textContent = `${humanBytes(total)} allocated at ${this.whenWords(moment)}`;
    for (const [id, name] of [['at-failure', 'failure'], ['at-peak', 'peak'], ['at-moment', 'clicked']]) {
      element(id).setAttribute('aria-pressed', String(this.listed === name));
    }
    element('at-moment').disabled = this.clicked === null;
    const rows = this.rowsBy ? this.groupRows(moment) : this.blockRows(moment);
    element('rows').replaceChildren(...rows.slice(0, this.shownRows).map((row) => this.row(row, total)));
    if (!rows.length) element('rows').replaceChildren(make('li', { className: 'hint', textContent: 'Nothing that the filters let through.' }));
    const rest = rows.slice(this.shownRows);
    element('more').hidden = !rest.length;
    element('more').textContent = `${humanCount(rest.length)} more, ${humanBytes(rest.reduce((sum, row) => sum + row.bytes, 0))}`;
    this.explainColours();
    this.flame.renew();
    this.segmentMap.draw();
  }

  // What the colours mean, and what each comes to at the listed moment; a click chooses it.
  explainColours() {
    const { colourBy } = this;
    const groups = this.groupsAt(this.moment, colourBy).filter(({ key }) => key >= 0);
    if (colourBy === 'category') {
      // The few that there are stand there at every moment, since the timeline shows them all.
      const listed = new Set(groups.map(({ key }) => key));
      this.timeline.categories ??= new Set(this.timeline.category);
      for (const key of this.timeline.categories) if (!listed.has(key)) groups.push({ key, bytes: 0 });
    }
    const shown = groups.slice(0, LEGEND).map(({ key, bytes }) =>
      make(
        'button',
        { type: 'button', title: this.wholeWords(colourBy, key), onclick: () => this.choose({ by: colourBy, key }) },
        this.swatch(key),
        make('span', { textContent: this.wholeWords(colourBy, key) }),
        make('b', { textContent: humanBytes(bytes) }),
      ));
    if (groups.length > LEGEND) shown.push(make('span', { className: 'hint', textContent: `and ${humanCount(groups.length - LEGEND)} more` }));
    element('legend').replaceChildren(...shown);
  }

  blockRows(moment) {
    const { timeline } = this;
    const blocks = timeline.liveAt(moment).filter((block) => this.isShown(block));
    blocks.sort((one, other) => timeline.size[other] - timeline.size[one]);
    return blocks.map((block) => {
      const { kind, frames, within, bytes } = this.wordsOf(block);
      return { bytes, blocks: '', largest: block, words: `${kind} · ${this.framesWords(frames)}`, within, chosen: { block } };
    });
  }

  groupRows(moment) {
    const by = this.rowsBy;
    return this.groupsAt(moment, by).map(({ key, bytes, blocks, summed, largest }) => ({
      bytes,
      largest,
      blocks: blocks ? `${blocksInWords(blocks)}${summed ? ' +' : ''}` : 'smaller',
      words: key < 0 ? 'smaller blocks, not told apart' : this.keys[by].words(key),
      within: key < 0 ? '' : this.keys[by].within?.(key),
      chosen: { by, key },
    }));
  }

  row({ bytes, blocks, largest, words, within, chosen }, total) {
    const share = (100 * bytes) / Math.max(total, 1);
    const button = make(
      'button',
      { type: 'button', title: within ? `${words} ${within}` : words, onclick: () => this.choose(chosen) },
      this.swatch(this.keyOf(largest, this.colourBy)),
      make('span', { className: 'number', textContent: humanBytes(bytes) }),
      make('span', { className: 'number', textContent: `${share.toFixed(1)} %` }),
      make('span', { className: 'number blocks', textContent: blocks }),
      make('span', { className: 'where' }, words, ...(within ? [make('span', { textContent: ` ${within}` })] : [])),
    );
    button.style.setProperty('--share', `${share}%`);
    return make('li', {}, button);
  }

  swatch(key) {
    const swatch = make('i', { className: 'swatch' });
    swatch.style.background = `rgb(${this.colourOfKey(key).join(' ')})`;
    return swatch;
  }

  choose(chosen) {
    this.chosen = chosen;
    this.draw();
    this.flame.mark();
    this.segmentMap.draw();
    this.describe();
  }

  // Blocks and curves that are no one's key: a piece of the flame graph, a segment. `of` and `curves` have 1 for each.
  choosePart({ of, curves, words, about, actions, node }) {
    this.keys.part = { of, curves, words };
    this.choose({ by: 'part', key: 1, about, actions, node });
  }

  describe() {
    const { chosen } = this;
    const panel = element('chosen');
    if (!chosen) {
      panel.replaceChildren(element('help').content.cloneNode(true));
    } else if (chosen.about) {
      panel.replaceChildren(...chosen.about());
    } else if (chosen.block !== undefined) {
      panel.replaceChildren(...this.aboutBlock(chosen.block));
    } else {
      panel.replaceChildren(...this.aboutGroup(chosen));
    }
    panel.classList.toggle('holds', chosen !== null);
    panel.scrollTop = 0;
  }

  aboutBlock(block) {
    const { timeline, header } = this;
    const [born, died] = [timeline.born[block], timeline.died[block]];
    const isFreed = died <= timeline.events;
    const facts = [['exactly', `${humanCount(timeline.size[block])} B`]];
    facts.push(['allocated', born ? this.whenWords(born) : 'before the recording began']);
    facts.push(['freed', isFreed ? this.whenWords(died) : 'not while it was recorded']);
    if (timeline.time && born && isFreed) facts.push(['lived', humanTime(timeline.time[died] - timeline.time[born])]);
    if (timeline.module[block]) facts.push(['module', header.modules[timeline.module[block]]]);
    facts.push(['category', `${header.categories[timeline.category[block]]} (${header.rules[timeline.rule[block]]})`]);
    if (timeline.tensor[block]) facts.push(['tensor', header.tensors[timeline.tensor[block]]]);
    const line = { by: 'line', key: this.keyOf(block, 'line') };
    const same = make('button', { type: 'button', textContent: 'All of this line', onclick: () => this.choose(line) });
    const zoom = make('button', { type: 'button', textContent: 'Zoom to its life', onclick: () => this.lookAtLife(block) });
    return [
      make('div', { className: 'size' }, this.swatch(this.keyOf(block, this.colourBy)), humanBytes(timeline.size[block])),
      this.factList(facts),
      make('div', { className: 'actions' }, same, zoom, this.letGo()),
      make('h3', { textContent: 'Asked for by' }),
      ...this.stackOf(timeline.stack[block]),
    ];
  }

  aboutGroup({ by, key, actions: more }) {
    const { timeline } = this;
    const group = this.groupsAt(this.moment, by).find((found) => found.key === key);
    const blocks = [...timeline.born.keys()].filter((block) => this.keyOf(block, by) === key);
    const facts = [[this.momentWords(), blocksInWords(group?.blocks ?? 0)]];
    facts.push(['in all', `${blocksInWords(blocks.length)} drawn exactly`]);
    if (group?.summed) facts.push(['and', 'smaller blocks, hatched']);
    const actions = make('div', { className: 'actions' }, ...(more?.() ?? []), this.letGo());
    if (blocks.length) {
      const largest = blocks.reduce((one, other) => (timeline.size[other] > timeline.size[one] ? other : one));
      const words = `Its largest block, ${humanBytes(timeline.size[largest])}`;
      actions.prepend(make('button', { type: 'button', textContent: words, onclick: () => this.choose({ block: largest }) }));
    }
    return [
      make('div', { className: 'size' }, this.swatch(this.keyOf(group?.largest ?? blocks[0], this.colourBy)), humanBytes(group?.bytes ?? 0)),
      make('p', { textContent: key < 0 ? 'Smaller blocks, not told apart' : this.wholeWords(by, key) }),
      this.factList(facts),
      actions,
      ...this.waysHere(blocks),
    ];
  }

  // The stacks of some blocks, those that hold most at the listed moment first.
  waysHere(blocks) {
    const { timeline, moment } = this;
    const held = new Map();
    for (const block of blocks) {
      const isLive = timeline.born[block] <= moment && moment < timeline.died[block];
      held.set(timeline.stack[block], (held.get(timeline.stack[block]) ?? 0) + (isLive ? timeline.size[block] : 0));
    }
    const stacks = [...held.keys()].sort((one, other) => held.get(other) - held.get(one));
    const [first, ...others] = stacks.filter((stack) => this.header.stacks[stack].length).slice(0, 8);
    if (first === undefined) return [];
    const rest = others.flatMap((stack) => [make('h3', { textContent: `${humanBytes(held.get(stack))} by` }), ...this.stackOf(stack)]);
    const heading = stacks.length > 1 ? `${humanBytes(held.get(first))} asked for by` : 'Asked for by';
    return [make('h3', { textContent: heading }), ...this.stackOf(first), ...rest];
  }

  letGo() {
    return make('button', { type: 'button', textContent: 'Let go', onclick: () => this.choose(null) });
  }

  factList(facts) {
    const list = make('dl');
    for (const [term, words] of facts) list.append(make('dt', { textContent: term }), make('dd', { textContent: words }));
    return list;
  }

  // The user's own frames, and all of them, torch's too, folded.
  stackOf(stack) {
    const frames = this.header.stacks[stack];
    if (!frames.length) return [make('p', { className: 'hint', textContent: 'No stack was recorded for it.' })];
    const own = this.header.paths[this.columns.pathOfStack[stack]];
    const details = make('details', {}, make('summary', { textContent: `All ${frames.length} frames, innermost first` }));
    details.addEventListener('toggle', () => details.children.length > 1 || details.append(this.frameList(frames, own)));
    const within = this.header.pathsWithin[this.columns.pathOfStack[stack]];
    const more = within ? [make('p', { className: 'hint', textContent: within })] : [];
    return [...more, this.frameList(own, own), details];
  }

  frameList(frames, own) {
    return make(
      'ol',
      {},
      ...frames.map((frame) => {
        const { name, where } = this.frameWords(frame);
        return make('li', { className: own.includes(frame) ? 'own' : 'other' }, name, make('span', { textContent: where }));
      }),
    );
  }

  // From its birth to its end, and as high as it is with its neighbours at both.
  lookAtLife(block) {
    const { timeline } = this;
    const [born, last] = [timeline.born[block], Math.min(timeline.died[block] - 1, timeline.events)];
    const below = [born, last].map((moment) =>
      timeline.liveAt(moment).reduce((sum, other) => (other < block ? sum + timeline.size[other] : sum), 0));
    this.bottom = Math.max(Math.min(...below) - timeline.size[block], 0);
    this.top = Math.min(Math.max(...below) + 2 * timeline.size[block], this.ceiling);
    const begin = this.axis.place(born);
    const end = timeline.died[block] > timeline.events ? this.axis.length : this.axis.place(last + 1);
    const around = Math.max((end - begin) * 0.15, this.axis.time ? 1 : 2);
    this.look(begin - around, end + around);
  }
}
