"""Names of vision tensors, whatever version of transformers saved them."""

from __future__ import annotations

import re

# in this order: the first that fits is taken
_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^(model\.)?visual\.", "visual."),
        (r"^(model\.)?vision_tower\.(vision_model\.)?", "visual.tower."),
        (r"^(model\.)?vision_model\.", "visual.tower."),
        (r"^(model\.)?connector\.modality_projection\.proj\.", "visual.connector."),
        (r"^(model\.)?multi_modal_projector\.", "visual.projector."),
        (r"^mlp1\.", "visual.mlp1."),
    )
)


def vision_tensor_name(name: str) -> str | None:
    """The name that a tensor of a vision-language checkpoint has here; None for one of its text part."""
    for pattern, replacement in _RULES:
        if pattern.match(name):
            return pattern.sub(replacement, name, count=1)
    return None
