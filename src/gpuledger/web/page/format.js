// Formatted numbers. An unknown value is a dash.

export const NONE = "–";
const GIB = 2 ** 30;
const MIB = 2 ** 20;
const formats = [0, 1, 2].map((digits) =>
  new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }));

const known = (value) => value !== null && value !== undefined;
const number = (value, digits) => formats[digits].format(value);
const digits = (value) => (Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0);

export function bytes(value) {
  if (!known(value)) return NONE;
  if (value === 0) return "0 GiB";
  return value < GIB / 10 ? `${number(value / MIB, 0)} MiB` : `${number(value / GIB, value < 100 * GIB ? 1 : 0)} GiB`;
}

// A part and its whole, with the unit once if it is the same.
export function bytesOf(part, whole) {
  const [first, last] = [bytes(part), bytes(whole)];
  const isSameUnit = known(part) && known(whole) && first.slice(-4) === last.slice(-4);
  return `${isSameUnit ? first.slice(0, -4) : first} of ${last}`;
}

export function watts(value) {
  if (!known(value)) return NONE;
  return value < 10000 ? `${number(value, value && value < 10 ? 1 : 0)} W` : `${number(value / 1000, 1)} kW`;
}

export function joules(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size < 1000) return `${number(value, 0)} J`;
  const [unit, name] = size < 1e7 ? [1e3, "kJ"] : size < 1e10 ? [1e6, "MJ"] : [1e9, "GJ"];
  return `${number(value / unit, digits(value / unit))} ${name}`;
}

// Units for a sum and its terms: size, name and digits. Readers can add up numbers only in one unit.
const UNITS = {
  bytes: (sum) => (sum < GIB / 10 ? [MIB, "MiB", 0] : [GIB, "GiB", 1]),
  watts: (sum) => (sum < 10 ? [1, "W", 1] : sum < 10000 ? [1, "W", 0] : [1000, "kW", 2]),
  joules: (sum) => {
    if (sum < 1000) return [1, "J", 0];
    const [size, name] = sum < 1e7 ? [1000, "kJ"] : sum < 1e10 ? [1e6, "MJ"] : [1e9, "GJ"];
    return [size, name, sum / size < 10 ? 2 : 1];
  },
};

// A function that formats a number in the unit of a sum.
export function inUnitOf(kind, sum) {
  const [size, name, places] = UNITS[kind](sum ?? 0);
  return (value) => {
    if (!known(value)) return NONE;
    if (value === 0) return `0 ${name}`;
    const least = 10 ** -places;
    return value / size < least / 2 ? `< ${number(least, places)} ${name}` : `${number(value / size, places)} ${name}`;
  };
}

// A sum and its terms, which are rounded so that they add up: the largest remainders are rounded up.
export function addends(kind, parts) {
  const sum = parts.reduce((total, part) => total + part, 0);
  const [size, name, places] = UNITS[kind](sum);
  const scale = 10 ** places / size;
  const wanted = Math.round(sum * scale);
  const whole = parts.map((part) => Math.floor(part * scale));
  const order = parts.map((part, index) => index).sort((a, b) => (parts[b] * scale - whole[b]) - (parts[a] * scale - whole[a]));
  const missing = wanted - whole.reduce((total, part) => total + part, 0);
  for (const index of order.slice(0, missing)) whole[index] += 1;
  const show = (value) => number(value / 10 ** places, places);
  return { sum: `${show(wanted)} ${name}`, parts: whole.map(show) };
}

// A number with three significant digits.
export function significant(value) {
  return known(value) ? Number(value).toLocaleString("en", { maximumSignificantDigits: 3 }) : NONE;
}

export function minutes(seconds) {
  return `${count(seconds / 60)} min`;
}

export function percent(value) {
  return known(value) ? `${number(value * 100, 0)} %` : NONE;
}

export function ratio(value) {
  return known(value) ? number(value, 2) : NONE;
}

export function celsius(value) {
  return known(value) ? `${number(value, 0)} °C` : NONE;
}

export function count(value) {
  return known(value) ? number(value, 0) : NONE;
}

export function plural(value, singular, many) {
  return `${count(value)} ${value === 1 ? singular : many}`;
}

export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

// The time of day, with the date if it is not of the last 24 hours.
export function moment(seconds, now) {
  return now - seconds < 86400 ? clock(seconds) : dateTime(seconds);
}

export function dateTime(seconds) {
  if (!known(seconds)) return NONE;
  const date = new Date(seconds * 1000);
  return `${date.toLocaleDateString("sv")} ${date.toLocaleTimeString("en-GB")}`;
}

export function duration(seconds) {
  if (!known(seconds)) return NONE;
  if (seconds < 90) return `${number(seconds, 0)} s`;
  if (seconds < 5400) return `${number(seconds / 60, 0)} min`;
  return seconds < 172800 ? `${number(seconds / 3600, 1)} h` : `${number(seconds / 86400, 1)} days`;
}
