"""Stands for NVIDIA's tensorrt_rtx in the child: refuses by operator name, one at a time, and ends the process at ``Abs``."""

import enum
import os
from types import SimpleNamespace

import onnx

__version__ = "0.0.fake"
REFUSED = ("Det", "Unique")


class ErrorCode(enum.Enum):
    UNSUPPORTED_NODE = 8


class ILogger:
    pass


class Builder:
    def __init__(self, logger):
        self.logger = logger

    def create_network(self, flags):
        return SimpleNamespace(flags=flags)


class OnnxParser:
    def __init__(self, network, logger):
        self._network, self._logger, self._errors = network, logger, []

    def supports_model_v2(self, data, path):
        del path
        graph = onnx.load_from_string(data).graph
        for index, node in enumerate(graph.node):
            text = f"Parsing node: {node.name} [{node.op_type}]"
            self._logger.log(None, text)
            if node.op_type == "Abs":
                os.abort()
            if node.op_type in REFUSED or node.domain:
                self._errors = [(index, node)]
                return False
        return True

    @property
    def num_errors(self):
        return len(self._errors)

    def get_error(self, index):
        at, node = self._errors[index]
        values = {"node": at, "node_name": node.name, "desc": f"no {node.op_type}", "code": ErrorCode.UNSUPPORTED_NODE}
        values |= {"func": f"check{node.op_type}", "file": "fake.cpp", "line": 7}
        return SimpleNamespace(**{name: (lambda value=value: value) for name, value in values.items()})
