// Finds repeated sequences of neighbours, such as `Linear, ReLU, Linear, ReLU`. No DOM.

const PATTERN_SIZE = 8; // modules of a pattern
const FEW_TURNS = 3; // times that a pattern of several modules occurs: fewer need no box

/**
 * @typedef {{first: number, period: number, n: number}} Repeated
 *   from which sibling on, how many modules are one turn, and how many turns there are
 */

/**
 * What repeats among siblings that are numbered: modules built alike, or patterns of them.
 * @param {{name: string, likeness: any, n_params: number}[]} siblings @returns {Repeated[]}
 */
export function find_repeated(siblings) {
  const found = [];
  for (let first = 0; first < siblings.length;) {
    const best = find_longest(siblings, first);
    if (best.n > 1) found.push(best);
    first += best.n * best.period;
  }
  return found;
}

/** The pattern from a sibling on that repeats the longest; of equal ones the shortest. */
function find_longest(siblings, first) {
  const is_alike = (i, j) => j < siblings.length && siblings[i].likeness === siblings[j].likeness
    && [i, j].every((at) => /^\d+$/.test(siblings[at].name));
  let best = { first, period: 1, n: 1 };
  for (let period = 1; period <= PATTERN_SIZE && first + 2 * period <= siblings.length; period += 1) {
    let end = first + period;
    while (is_alike(end - period, end)) end += 1;
    const n = Math.floor((end - first) / period);
    const is_long = n * period > best.n * best.period;
    if (n >= (period > 1 ? FEW_TURNS : 2) && is_long && is_begun(siblings.slice(first, first + period))) {
      best = { first, period, n };
    }
  }
  return best;
}

/** Whether a pattern begins with a module with parameters, if it has one. */
const is_begun = (turn) => turn[0].n_params > 0 || turn.every(({ n_params }) => !n_params);
