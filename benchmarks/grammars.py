"""A form of answers that never ends by itself, for ours as a JSON schema and for llama.cpp as a grammar."""

from __future__ import annotations

ITEMS = 500

SCHEMA = {
    "type": "array",
    "minItems": ITEMS,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 24}, "count": {"type": "integer", "maximum": 9999}},
        "required": ["name", "count"],
        "additionalProperties": False,
    },
}

GRAMMAR = r"""
root ::= "[" blank item ("," blank item)* "]"
item ::= "{" blank "\"name\"" blank ":" blank string blank "," blank "\"count\"" blank ":" blank number blank "}" blank
string ::= "\"" [^"\\\x00-\x1f]{0,24} "\""
number ::= "-"? [0-9]{1,4}
blank ::= [ \n]{0,8}
"""
