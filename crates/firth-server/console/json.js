// JSON whose numbers keep their text. A double would make 9007199254740993 end in 2, and 1.0 be 1.

/** A number that no double can hold as it was written; `JSON.stringify` writes it as it was. */
export const isExact = (value) => JSON.isRawJSON !== undefined && JSON.isRawJSON(value);

const keep = (_, value, at) =>
  typeof value === "number" && at && at.source !== undefined && String(value) !== at.source ? JSON.rawJSON(at.source) : value;

/** Reads a payload. Browsers before 2025 do not show the text of a number; they read doubles. */
export function parse(text) {
  if (JSON.rawJSON === undefined) return JSON.parse(text);
  try {
    return JSON.parse(text, keep);
  } catch (error) {
    if (error instanceof RangeError) return JSON.parse(text); // nested too deep to look at each number
    throw error;
  }
}
