"""A page with the report's script, and a stub for the widget's model."""

from pathlib import Path

CHECK = "".join(
    (Path(__file__).parent / name).read_text("utf-8")
    for name in ("contrast.js", "check_report.js")
)
VIEWS = ("Modules", "Flow", "Operators", "Memory", "Source", "Charts")
ADDRESS = "http://report.test/"
CHOICE = {
    "root": 0,
    "path": "",
    "device": "cpu",
    "init": "replay",
    "dtype": "as built",
    "values": "as after the cell",
    "checkpoint": "",
}
TRAITS = {
    "roots": ["model: Sequential", "all that your variables hold"],
    "places": [0],
    "devices": ["cpu", "cuda:0"],
    "inits": ["replay", "reset", "empty", "checkpoint"],
    "dtypes": ["as built", "float32"],
    "values": ["as after the cell", "as constructed"],
    "choice": CHOICE,
    "needed": "1.0 KiB",
    "free": "8.0 GiB",
    "is_enough": True,
    "is_real": False,
    "forecast": "4 operators, less than a second",
    "fitting": "",
    "state": "idle",
    "progress": 0,
    "left": "",
    "message": "",
    "report": "",
    "saved_id": "",
    "fit_offer": {
        "sizes": {"batch": 8, "width": 64},
        "choices": ["autocast", "checkpointing"],
        "reason": "",
    },
    "fit_state": {},
    "growths": [],
    "stretches": {},
    "sliders": [],
    "settings": {"depth": 2, "height": 420},
}
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>report</title>
<meta name="color-scheme" content="light dark"><style>%(styles)s</style></head>
<body style="background: Canvas; color: CanvasText">
<main id="notebook"><h1>Notebook</h1><div id="report"></div></main>
<script type="module">
%(scripts)s
window.sent = [];
window.reached = [];
document.addEventListener("keydown", (event) => reached.push(event.key));
const packed = Uint8Array.from(atob("%(payload)s"), (c) => c.charCodeAt(0));
window.traits = { ...%(traits)s, payload: new DataView(packed.buffer) };
window.listeners = {};
window.model = {
  get: (name) => traits[name],
  set(name, value) { traits[name] = value; listeners.change?.(); },
  on(name, listener) {
    const before = listeners[name];
    listeners[name] = (...sent) => { before?.(...sent); listener(...sent); };
  },
  send(message) {
    sent.push(message);
    if (message.kind !== "offer") return;
    listeners["msg:custom"]({ ...message, ...traits.fit_offer });
  },
};
await report.render({ model, el: document.getElementById("report") });
window.ready = true;
</script></body></html>"""


def show(report, view):
    """Choose a view of a report, and return it."""
    report.get_by_role("tab", name=view).click()
    return report.get_by_role("tabpanel", name=view)


def list_unreadable(page, function="check_report"):
    """Return what a person could not read in the view that is shown."""
    found = page.evaluate(f"() => {{ {CHECK}; return {function}(); }}")
    return [(f["what"], f["text"], f["where"]) for f in found]
