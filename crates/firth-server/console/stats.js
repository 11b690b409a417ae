// The server's samples: the whole window once, then only what is new.

import { get, query } from "./api.js";

const COLUMNS = ["produced", "settled", "lag", "dead", "memory", "disk", "disk_free", "handling_ms"];
const KEEP = 900;

/** Follows `/v1/stats`. `read()` asks for what is new. */
export function follow(asked) {
  const state = { from: 0, step: 1000, columns: Object.fromEntries(COLUMNS.map((name) => [name, []])), last: null };
  let after;
  async function read(signal) {
    const answer = await get(query("/v1/stats", { ...asked, after_ms: after }), signal);
    // A server that started anew has a ring of its own.
    if (state.last && answer.time_ms < state.last.time_ms) return reset(signal);
    state.last = answer;
    state.step = answer.step_ms;
    if (answer.total) {
      const added = answer.total;
      if (!state.columns.produced.length) state.from = added.from_ms;
      const missing = Math.round((added.from_ms - state.from) / state.step) - state.columns.produced.length;
      if (missing > KEEP || missing < 0) {
        // The page slept for longer than is kept, or the samples overlap: begin anew.
        state.from = added.from_ms;
        for (const name of COLUMNS) state.columns[name] = [];
      }
      for (const name of COLUMNS) {
        const column = state.columns[name];
        while (missing <= KEEP && column.length * state.step + state.from < added.from_ms) column.push(null);
        column.push(...added[name]);
      }
      const over = state.columns.produced.length - KEEP;
      if (over > 0) {
        for (const name of COLUMNS) state.columns[name].splice(0, over);
        state.from += over * state.step;
      }
    }
    after = answer.time_ms;
    return answer;
  }
  function reset(signal) {
    for (const name of COLUMNS) state.columns[name] = [];
    after = undefined;
    state.last = null;
    return read(signal);
  }
  return { state, read, pick: (...names) => ({ from: state.from, step: state.step, columns: names.map((name) => state.columns[name]) }) };
}

/** The newest number of a column. */
export const newest = (column) => (column || []).findLast((value) => value !== null && value !== undefined);
