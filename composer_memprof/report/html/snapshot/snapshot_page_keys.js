'use strict';
// What blocks are coloured and grouped by, which of them the filters and the choice leave, and how they are called.

const element = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

class Keys {
  offerKeys() {
    const { timeline, header } = this;
    const phaseOf = Int32Array.from(timeline.born, (born) => {
      const phase = born > 0 ? timeline.phaseOf(born) : -1;
      return phase < 0 ? 0 : 1 + timeline.phases.names[phase];
    });
    const lines = this.withoutStack(timeline.line, header.lines.length);
    const paths = this.withoutStack(timeline.path, header.paths.length);
    this.keys = {
      category: { of: timeline.category, curves: timeline.curveCategories, words: (key) => header.categories[key] },
      line: { of: lines.of, curves: timeline.curves, words: (key) => lines.words.get(key) ?? this.framesWords(header.lines[key]), within: (key) => header.linesWithin[key] },
      'call path': { of: paths.of, curves: [], words: (key) => paths.words.get(key) ?? this.framesWords(header.paths[key]), within: (key) => header.pathsWithin[key] },
      module: { of: timeline.module, curves: [], words: (key) => header.modules[key] || 'no module' },
      phase: { of: phaseOf, curves: [], words: (key) => (key ? `allocated in ${header.phases[key - 1]}` : 'allocated before') },
    };
    const offered = Object.keys(this.keys).filter((name) => !['module', 'phase'].includes(name) || this.keys[name].of.some((key) => key));
    const options = () => offered.map((name) => make('option', { value: name, textContent: name }));
    element('key').replaceChildren(...options());
    element('rows-by').replaceChildren(...options(), make('option', { value: '', textContent: 'single block' }));
    element('rows-by').value = this.rowsBy = 'line';
    // Where most of it is of no known category, lines of code tell more.
    const [unknown, most] = [header.categories.indexOf('unknown'), timeline.total[timeline.peak] / 2];
    const isKnown = this.groupsAt(timeline.peak, 'category').every(({ key, bytes }) => key !== unknown || bytes <= most);
    this.setColours(isKnown ? 'category' : 'line');
    element('key').value = this.colourBy;
  }

  // Blocks without a stack are told apart by what else is known of them: with keys of their own, from `next` on.
  withoutStack(keys, next) {
    const { timeline, header } = this;
    const known = new Map();
    const of = keys.map((key, block) => {
      if (timeline.stack[block]) return key;
      const category = header.categories[timeline.category[block]];
      const module = timeline.tensor[block] ? '' : header.modules[timeline.module[block]];
      let words = `${category}, without a stack${module ? `, while ${module} ran` : ''}`;
      if (!timeline.born[block]) words = `${category}, made before the recording`;
      if (!known.has(words)) known.set(words, next + known.size);
      return known.get(words);
    });
    return { of, words: new Map([...known].map(([words, key]) => [key, words])) };
  }

  setColours(name) {
    this.colourBy = name;
    const key = this.keys[name];
    // The largest at the peak take the colours that are easiest to tell apart.
    const sizes = new Map(this.groupsAt(this.timeline.peak, name).map((group) => [group.key, group.bytes]));
    for (const found of key.of) if (!sizes.has(found)) sizes.set(found, 0);
    const ranked = [...sizes.keys()].filter((found) => found >= 0).sort((one, other) => sizes.get(other) - sizes.get(one));
    this.rank = new Map(ranked.map((found, rank) => [found, rank]));
    this.recolour();
  }

  // -1 where a curve of smaller blocks is of no one key.
  keyOf(id, name) {
    return (id >= 0 ? this.keys[name].of[id] : this.keys[name].curves[FIRST_CURVE - id]) ?? -1;
  }

  colourOfKey(key) {
    if (key < 0) return [140, 146, 156];
    if (this.colourBy === 'category') return fromHex(this.header.categoryColours[key]);
    return colourOf(this.rank.get(key) ?? 0);
  }

  // For each key its colours: as they are, and beside what is chosen.
  recolour() {
    const ground = this.dark.matches ? [20, 24, 31] : [255, 255, 255];
    const edge = this.dark.matches ? [0, 0, 0] : [255, 255, 255];
    const pair = (colour, hatched) => [packed(colour), packed(mixed(colour, edge, 0.45)), hatched];
    this.paints = new Map();
    for (const key of [...this.rank.keys(), -1]) {
      const colour = this.colourOfKey(key);
      const faint = mixed(colour, ground, 0.72);
      this.paints.set(key, [pair(colour, false), pair(faint, false), pair(colour, true), pair(faint, true)]);
    }
    this.grey = pair(mixed([128, 134, 144], ground, 0.75), false); // filtered out
  }

  isShown(block) {
    return this.timeline.size[block] >= this.smallest && (!this.found || this.found[this.timeline.stack[block]]);
  }

  isCurveShown(curve) {
    const line = this.timeline.curves[curve];
    return this.smallest === 0 && (!this.found || (line !== undefined && this.foundLines.has(line)));
  }

  isChosen(id) {
    const { block, by, key } = this.chosen;
    return block === undefined ? this.keyOf(id, by) === key : block === id;
  }

  painter() {
    return (id) => {
      if (!(id < 0 ? this.isCurveShown(FIRST_CURVE - id) : this.isShown(id))) return this.grey;
      const isFaint = this.chosen && !this.isChosen(id);
      return this.paints.get(this.keyOf(id, this.colourBy))[(id < 0 ? 2 : 0) + (isFaint ? 1 : 0)];
    };
  }

  frameWords(frame) {
    const { frames, files, names } = this.header;
    const [file, line, name] = frames[frame];
    return { name: names[name], where: line ? `${files[file]}:${line}` : files[file].replace('??', '') };
  }

  // In one line: the function, and the file with its folder's name.
  framesWords(frames) {
    if (!frames.length) return 'no stack: allocated before the recording, or by a thread without Python, as a backward on a GPU is';
    return frames
      .map((frame) => {
        const { name, where } = this.frameWords(frame);
        return `${name} ${where.split('/').slice(-2).join('/')}`.trimEnd();
      })
      .join('  ←  ');
  }

  // With the library's frame that asked, where the user's own frames do not tell.
  wholeWords(name, key) {
    const { words, within } = this.keys[name];
    return [words(key), within?.(key)].filter(Boolean).join(' ');
  }

  momentWords() {
    return { failure: 'at the failure', peak: 'at the peak', clicked: 'where clicked' }[this.listed];
  }

  filtersWords() {
    return this.smallest || this.found ? ', of what the filters let through' : '';
  }

  whenWords(moment) {
    const { timeline } = this;
    const parts = [`event ${humanCount(moment)}`];
    if (timeline.time) parts.unshift(humanTime(timeline.time[moment]));
    const phase = timeline.phaseOf(moment);
    if (phase >= 0) parts.push(`batch ${timeline.phases.batches[phase]}, ${this.header.phases[timeline.phases.names[phase]]}`);
    return parts.join(', ');
  }

  wordsOf(id) {
    const { timeline, header } = this;
    const category = header.categories[this.keyOf(id, 'category')];
    if (id >= 0) {
      const kind = [category, header.tensors[timeline.tensor[id]]].filter(Boolean).join(' ');
      const path = timeline.path[id];
      return { bytes: timeline.size[id], kind, frames: header.paths[path], within: header.pathsWithin[path] };
    }
    const line = timeline.curves[FIRST_CURVE - id];
    return { kind: category ?? '', frames: header.lines[line], within: header.linesWithin[line] };
  }

  // What a tip says of a block beside its size.
  tipLines(id) {
    const { kind, frames, within } = this.wordsOf(id);
    const lines = kind && id >= 0 ? [make('div', { textContent: kind })] : [];
    if (within) lines.push(make('div', { className: 'hint', textContent: within }));
    if (frames) lines.push(make('div', { textContent: this.framesWords(frames) }));
    return lines;
  }
}
