/** @import { Header } from '../types.d.ts' */

export const NO_STACK =
  'no stack: allocated before the recording, or on a thread without Python, such as the backward of a GPU';

/** Stack frames as text. */
export class FrameText {
  /** @param {Pick<Header, 'frames' | 'files' | 'names'>} header */
  constructor({ frames, files, names }) {
    this.frames = frames;
    this.files = files;
    this.names = names;
  }

  /** @param {number} frame */
  partsOf(frame) {
    const [file, line, name] = this.frames[frame];
    const path = this.files[file];
    return { name: this.names[name], where: line ? `${path}:${line}` : path.replace('??', '') };
  }

  /**
   * In one line, files with the folder that they are in.
   *
   * @param {number[]} frames innermost first
   */
  join(frames) {
    if (!frames.length) return NO_STACK;
    return frames
      .map((frame) => {
        const { name, where } = this.partsOf(frame);
        return `${name} ${where.split('/').slice(-2).join('/')}`.trimEnd();
      })
      .join('  ←  ');
  }

  /**
   * Frames of libraries by the one that says most: the innermost in Python, or what torch was asked for.
   *
   * @param {number[]} frames innermost first
   */
  summarize(frames) {
    const parts = frames.map((frame) => this.partsOf(frame));
    /** @type {(part: 'name' | 'where', pattern: RegExp) => number | undefined} */
    const first = (part, pattern) => frames[parts.findIndex((one) => pattern.test(one[part]))];
    const telling =
      first('where', /\.py(:|$)/) ??
      first('name', /Backward\d*::apply|THPVariable_/) ??
      first('name', /^torch::autograd::(?!VariableType)/) ??
      frames[0];
    const more = frames.length > 1 ? ` and ${frames.length - 1} more` : '';
    return `${shortSymbol(this.join([telling]))}${more}`;
  }

  /**
   * For each frame, true if its function or file has `text` in it.
   *
   * @param {string} text in lower case
   */
  matches(text) {
    return this.frames.map(([file, , name]) => `${this.files[file]} ${this.names[name]}`.toLowerCase().includes(text));
  }
}

/**
 * A C++ function as its name and its class, without arguments: `BmmBackward0::apply`.
 *
 * @param {string} symbol
 */
export function shortSymbol(symbol) {
  if (!symbol.includes('::')) return symbol;
  return symbol
    .replace(/\((?!anonymous).*$/, '')
    .split('::')
    .slice(-2)
    .join('::');
}
