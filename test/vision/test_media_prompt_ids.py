"""Ids that are given beside a tower of images, whatever they are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from edgellm_ros.errors import RequestError
from edgellm_ros.runtime.media_prompt import prompt_media


@pytest.mark.parametrize("number", [2**63, 10**30, -(2**63) - 1], ids=["64 bits", "large", "negative"])
def test_an_id_that_no_array_takes_is_refused(number):
    with pytest.raises(RequestError, match="use ids of this engine's tokenizer"):
        prompt_media((), [1, number], SimpleNamespace(), lambda token: None)  # type: ignore[arg-type]
