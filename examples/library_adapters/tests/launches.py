"""Print the launches that layers of kernel libraries make, as JSON; their kernels do not run.

Each launch has its layer, its kernel, its key as a table would have it, and why it failed.
"""

import json
import sys
import warnings

import triton
import tuner
from triton.runtime import interpreter
from tuner.capturing.workloads import workload_of

from library_adapters import LIBRARIES

warnings.simplefilter("ignore")
interpreter.GridExecutor.__call__ = lambda self, *args, **kwargs: None
triton.runtime.autotuner.Autotuner._bench = lambda self, *args, config, **more: [1.0, 1.0, 1.0]

found = []
for name, model, parallel, tokens in json.loads(sys.argv[1]):
    for layer in LIBRARIES[name]().layers(model, parallel):
        with tuner.capture() as calls:
            layer.run(tokens, "cpu")
        for captured in calls:
            for call in captured.calls:
                key = workload_of(call, ()).as_dict()
                found.append([name, layer.name, call.place, key, call.problem])
print(json.dumps(found))
