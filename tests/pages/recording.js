/** A small recording, as data.py writes it. */

/** @import { DeviceHeader, Header, Recording } from '../../composer_memprof/report/html/snapshot/script/types.d.ts' */

export const MIB = 1 << 20;

/**
 * Of three events a millisecond apart: `main` allocates 4 MiB in `forward` and 2 MiB by torch alone; the first is freed.
 *
 * @param {Partial<DeviceHeader>} [device]
 * @param {Partial<Header>} [header]
 * @returns {Recording}
 */
export function recording(device = {}, header = {}) {
  return {
    header: {
      files: ['/me/train.py', '/lib/torch/nn/functional.py', '??'],
      names: ['main', 'forward', 'linear', 'at::BmmBackward0::apply(int)'],
      ownFiles: [1, 0, 0],
      frames: [
        [0, 3, 0],
        [0, 7, 1],
        [1, 1, 2],
        [2, 0, 3],
      ],
      stacks: [[], [2, 1, 2, 2, 0], [3, 2, 0]],
      paths: [[], [1, 0], [0]],
      pathsWithin: ['', '', '(in torch)'],
      lines: [[], [1], [0]],
      linesWithin: ['', '', '(in torch)'],
      modules: ['', 'blocks.0'],
      tensors: ['', 'weight'],
      phases: ['forward'],
      phaseColors: ['#4c78a8'],
      categories: [
        { label: 'parameter', color: '#4878a8' },
        { label: 'unknown', color: '#a0a0a0' },
      ],
      unknownCategory: 1,
      rules: ['no rule'],
      outOfMemory: false,
      devices: [
        {
          name: 'cuda 0',
          events: 3,
          peak: 2,
          failure: null,
          outOfMemory: [],
          curves: [2],
          curveCategories: [1],
          segments: null,
          ...device,
        },
      ],
      ...header,
    },
    columns: {
      lineOfStack: Int32Array.of(0, 1, 2),
      pathOfStack: Int32Array.of(0, 1, 2),
      '0.born': Int32Array.of(1, 2),
      '0.life': Int32Array.of(2, 2),
      '0.sizes': Float64Array.of(2 * MIB, 4 * MIB),
      '0.size': Int32Array.of(1, 0),
      '0.stack': Int32Array.of(1, 2),
      '0.module': Int32Array.of(1, 0),
      '0.category': Int32Array.of(0, 1),
      '0.rule': Int32Array.of(0, 0),
      '0.tensor': Int32Array.of(1, 0),
      '0.smallerMoments': Int32Array.of(0, 2),
      '0.smallerSizes': Float64Array.of(0, 512, 0, 100),
      '0.timeMoments': Int32Array.of(0, 1, 3),
      '0.times': Float64Array.of(0, 1000, 3000),
      '0.phaseMoments': Int32Array.of(1),
      '0.phaseTimes': Float64Array.of(500),
      '0.phaseBatches': Int32Array.of(7),
      '0.phaseNames': Int32Array.of(0),
    },
  };
}
