"""Lets SGLang draft on a CPU without its compiled kernels (sgl_kernel wants AMX): its own Triton kernels for the draft
tree, those for XPUs, run in Triton's interpreter (TRITON_INTERPRET=1) instead.

On PYTHONPATH of the server, Python imports this by itself in every process.
"""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder

TREE = "sglang.kernels.ops.speculative.spec_tree"


class Tree(MetaPathFinder):
    """Finds the one module and says in it, once it is loaded, that this is an XPU."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != TREE:
            return None
        spec = PathFinder.find_spec(fullname, path)
        execute = spec.loader.exec_module

        def changed(module):
            execute(module)
            module._is_xpu = True

        spec.loader.exec_module = changed
        return spec


sys.meta_path.insert(0, Tree())
