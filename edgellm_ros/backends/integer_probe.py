"""Whether this CPU multiplies eight-bit integers exactly: without VNNI, sums of two products may run over 16 bits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..errors import BackendError
from .onnx_bytes import FLOAT, INT8, UINT8, one_node_model

INTEGER_PRODUCTS = "integer_products"  # graph metadata: matrices of int8 meet activations of uint8
_DEPTH, _WIDTH = 64, 32


def check_integer_products(metadata: Mapping[str, str], details: dict[str, str]) -> None:
    """Multiply the largest numbers there are, where a graph relies on such products.

    :raises BackendError: the result is not exact.
    """
    if INTEGER_PRODUCTS not in metadata:
        return
    error = product_error()
    details["integer_product_error"] = f"{error:g}"
    if error:
        raise BackendError(
            f"onnxruntime {details.get('onnxruntime', '')} rounds eight-bit products on this CPU, which has no VNNI; "
            "build the image tower with '--vision-precision fp32'."
        )


def product_error() -> float:
    """The largest difference between what the library gives for extreme products and what they are.

    :raises BackendError: it does not run them.
    """
    import onnxruntime  # here, since the builder reads this module's constant without it

    model = one_node_model(
        "MatMulIntegerToFloat",
        "com.microsoft",
        {},
        {
            "a": (UINT8, (2, _DEPTH)),
            "b": (INT8, (_DEPTH, _WIDTH)),
            "a_scale": (FLOAT, (1,)),
            "b_scale": (FLOAT, (_WIDTH,)),
        },
        {"y": (FLOAT, (2, _WIDTH))},
        node_inputs=("a", "b", "a_scale", "b_scale"),
    )
    left = np.full((2, _DEPTH), 255, dtype=np.uint8)
    right = np.full((_DEPTH, _WIDTH), 127, dtype=np.int8)
    right[:, 1::2] = -127
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    ones = {"a_scale": np.ones(1, np.float32), "b_scale": np.ones(_WIDTH, np.float32)}
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        (found,) = session.run(["y"], {"a": left, "b": right, **ones})
    except Exception as error:  # ONNX Runtime's exceptions share no base but this
        raise BackendError(f"the probe of eight-bit products does not run: {error}") from error
    wanted = left.astype(np.float64) @ right.astype(np.float64)
    return float(np.abs(np.asarray(found) - wanted).max())
