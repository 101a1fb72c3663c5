// The entry point of a saved report with the World view.

import { VIEWS } from "./report.js";
import { start_saved } from "./saved.js";
import { mount_world } from "./world/world.js";

VIEWS.World = mount_world;

export default { start_saved };
