// The choice of the device for all estimated times.

import { make } from "./dom.js";
import { ESTIMATE } from "./times.js";

/** A choice among the devices, one in all views. @param {import("./times.js").Times} times */
export function make_device_select(times) {
  const { devices } = times.trace.work;
  const select = make("select", {
    class: "mm-device", "aria-label": "Times on", title: ESTIMATE,
    onchange: () => times.choose(devices[select.selectedIndex]),
  }, ...devices.map(({ title }) => make("option", {}, title)));
  const follow = () => { select.selectedIndex = devices.indexOf(times.device); };
  times.subscribe(follow);
  follow();
  return select;
}
