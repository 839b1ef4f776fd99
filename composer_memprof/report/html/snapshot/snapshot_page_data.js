// What the page draws, out of the columns that packed.js unpacks. A moment is the state after so many events; a block lives
// from the moment `born` up to, and without, `died`.

// One device's history: blocks as columns, the sums of the smaller ones, and the total at every moment.
class Timeline {
  constructor(header, columns, number) {
    const own = (name) => columns[`${number}.${name}`];
    const device = header.devices[number];
    this.events = device.events;
    this.peak = device.peak;
    this.failure = device.failure; // the moment at which the training failed, or null
    this.outOfMemory = device.outOfMemory;
    this.curves = device.curves; // the line of each
    this.curveCategories = device.curveCategories;
    this.smallerBlocks = device.smallerBlocks;
    this.born = own('born');
    this.died = own('life').map((life, block) => life + this.born[block]);
    const sizes = own('sizes');
    this.size = Float64Array.from(own('size'), (index) => sizes[index]);
    this.stack = own('stack');
    this.module = own('module');
    this.line = this.stack.map((stack) => columns.lineOfStack[stack]);
    this.path = this.stack.map((stack) => columns.pathOfStack[stack]);
    this.category = own('category');
    this.rule = own('rule');
    this.tensor = own('tensor');
    this.smallerMoments = own('smallerMoments');
    this.smallerSizes = own('smallerSizes');
    this.reservedMoments = own('reservedMoments') ?? null;
    this.reservedSizes = own('reservedSizes') ?? null;
    this.time = own('times') ? this.everyTime(own('timeMoments'), own('times')) : null;
    this.phases = {
      moments: own('phaseMoments') ?? [],
      times: own('phaseTimes') ?? [],
      batches: own('phaseBatches') ?? [],
      names: own('phaseNames') ?? [],
    };
    this.total = this.everyTotal();
  }

  everyTime(moments, times) {
    const every = new Float64Array(this.events + 1);
    for (let knot = 1; knot < moments.length; knot++) {
      const [begin, end] = [moments[knot - 1], moments[knot]];
      const step = (times[knot] - times[knot - 1]) / (end - begin);
      for (let moment = begin; moment <= end; moment++) every[moment] = times[knot - 1] + (moment - begin) * step;
    }
    return every;
  }

  everyTotal() {
    const change = new Float64Array(this.events + 2);
    for (let block = 0; block < this.born.length; block++) {
      change[this.born[block]] += this.size[block];
      change[this.died[block]] -= this.size[block];
    }
    const total = new Float64Array(this.events + 1);
    let exact = 0;
    let known = -1;
    let smaller = 0;
    for (let moment = 0; moment <= this.events; moment++) {
      exact += change[moment];
      if (this.smallerMoments[known + 1] === moment) {
        known += 1;
        smaller = 0;
        for (let curve = 0; curve <= this.curves.length; curve++) smaller += this.smallerAt(curve, known);
      }
      total[moment] = exact + smaller;
    }
    return total;
  }

  // Bytes in one curve of smaller blocks at the n-th of the moments where they are known.
  smallerAt(curve, known) {
    return this.smallerSizes[curve * this.smallerMoments.length + known];
  }

  liveAt(moment) {
    const live = [];
    for (let block = 0; block < this.born.length && this.born[block] <= moment; block++) {
      if (moment < this.died[block]) live.push(block);
    }
    return live;
  }

  // Which phase the event that led to a moment fell into, or -1.
  phaseOf(moment) {
    return lastAtMost(this.phases.moments, moment - 1);
  }
}

// Where moments lie along the page: in microseconds, or one after the other.
class Axis {
  constructor(timeline, byTime) {
    this.time = byTime ? timeline.time : null;
    const end = this.time ? this.time[timeline.events] : timeline.events;
    this.length = this.time ? (end || 1) * 1.005 : end + 1;
    this.events = timeline.events;
  }

  place(moment) {
    return this.time ? this.time[Math.min(moment, this.events)] : moment;
  }

  // The first moment at or after a place; one past the last where there is none.
  firstFrom(place) {
    if (!this.time) return Math.min(Math.max(Math.ceil(place), 0), this.events + 1);
    let low = 0;
    let high = this.time.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.time[middle] < place) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  momentAt(place) {
    return this.time ? Math.max(lastAtMost(this.time, place), 0) : Math.min(Math.max(Math.floor(place), 0), this.events);
  }
}

// -- words ---------------------------------------------------------------------------------------------------------

function humanBytes(count) {
  let size = count;
  for (const unit of ['B', 'KiB', 'MiB', 'GiB']) {
    if (Math.abs(size) < 1024) return unit === 'B' ? `${size} B` : `${size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} TiB`;
}

// Sizes on an axis: as many digits as tell one step from the next.
function bytesOnAxis(count, step) {
  const power = count ? Math.min(Math.floor(Math.log2(count) / 10), 4) : 0;
  const unit = 1024 ** power;
  const digits = Math.max(Math.ceil(Math.log10(unit / step)), 0);
  return `${+(count / unit).toFixed(digits)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][power]}`;
}

function blocksInWords(count) {
  return `${humanCount(count)} ${count === 1 ? 'block' : 'blocks'}`;
}

// '1.5 GiB', '512k' or '4096' in bytes; 0 for nothing, NaN for what is none of these.
function bytesIn(text) {
  if (!text.trim()) return 0;
  const found = /^\s*([\d.]+)\s*(?:([kmgt])i?)?b?\s*$/i.exec(text);
  return found ? Number(found[1]) * 1024 ** (' kmgt'.indexOf((found[2] ?? ' ').toLowerCase())) : NaN;
}
