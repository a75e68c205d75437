"""The tokenizer of the tabletop model: a small byte-level BPE in Hugging Face format, and the two prompt forms.

Run as a script it trains the tokenizer on the templates' own sentences and writes its files into a folder.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from edgellm_ros.tabletop.objects import ALL_COMBINATIONS, COLOUR_NAMES, SHAPE_NAMES, describe
from edgellm_ros.tabletop.questions import DIRECTIONS, NUMBERS, PHRASES, with_article
from edgellm_ros.tabletop.tasks import PUSH_PHRASES, PUT_PHRASES, SIDES, TOUCH_PHRASES

VOCABULARY = 512
END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<end_of_utterance>"
IMAGE_EDGE, GLOBAL_IMAGE, IMAGE = "<fake_token_around_image>", "<global-img>", "<image>"
SPECIAL_TOKENS = [END_OF_TEXT, START, END, IMAGE_EDGE, GLOBAL_IMAGE, IMAGE]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + (message['role'] | capitalize) }}"
    "{% if message['content'] is string %}{{ ': ' + message['content'] }}"
    "{% else %}{{ ':' if message['content'][0]['type'] == 'image' else ': ' }}"
    "{% for part in message['content'] %}"
    "{{ '<image>' if part['type'] == 'image' else part['text'] }}"
    "{% endfor %}{% endif %}{{ '<end_of_utterance>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
TASK_LIMIT = 23  # tokens, the final line feed included; the prefix then has a length that attention kernels like
DIALOGUE_LIMIT = 80


def corpus() -> list[str]:
    """Every template with enough fillings that each name and each phrase becomes few tokens."""
    names = [describe(colour, shape) for colour, shape in ALL_COMBINATIONS]
    pairs = list(zip(names, names[7:] + names[:7], strict=True))
    lines: list[str] = []
    for phrase in TOUCH_PHRASES + PUT_PHRASES:
        lines += [phrase.format(x=x, y=y) + "\n" for x, y in pairs]
    for phrase, side in itertools.product(PUSH_PHRASES, SIDES.values()):
        lines += [phrase.format(x=x, side=side) + "\n" for x, _ in pairs]
    lines += [line[0].upper() + line[1:-1] + ".\n" for line in lines] + ["please " + line for line in lines[::3]]
    plural = [name + "s" for name in SHAPE_NAMES] + [name + " objects" for name in COLOUR_NAMES] + ["objects"]
    for phrase in itertools.chain.from_iterable(PHRASES.values()):
        question = [phrase.format(x=x, y=y) for x, y in pairs + [(word, word) for word in plural] * 2]
        lines += [f"User:{text}" for text in question] + [f"User: {text}\nAssistant:" for text in question]
    for direction in DIRECTIONS:
        lines += [f"Assistant: The {x} is {direction} the {y}." for x, y in pairs]
    for number, word in itertools.product(NUMBERS, plural):
        lines += [f"Assistant: There are {number} {word}.", f"Assistant: There is {number} {word.rstrip('s')}."]
    lines += [f"Assistant: The {shape} is {colour}." for shape, colour in itertools.product(SHAPE_NAMES, COLOUR_NAMES)]
    lines += [f" A{with_article(x)[1:]}, {with_article(y)} and {with_article(x)}." for x, y in pairs] * 4
    return lines


def train_tokenizer(folder: Path) -> None:
    """Train on ``corpus`` and write the tokenizer's files with the chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": START, "eos_token": END, "pad_token": END_OF_TEXT, "unk_token": END_OF_TEXT}
    special["additional_special_tokens"] = [IMAGE_EDGE, GLOBAL_IMAGE, IMAGE]
    config = {
        **special,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "special_tokens_map.json").write_text(json.dumps(special, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


class Codec:
    """Prompts to token ids and back, for one tokenizer folder and a number of tokens a picture."""

    def __init__(self, folder: Path, image_tokens: int, cameras: int = 2) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.ids = {token: self.tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
        picture = IMAGE_EDGE + GLOBAL_IMAGE + IMAGE * image_tokens + IMAGE_EDGE
        self.pictures = START + "User:" + picture * cameras
        self.encode = functools.lru_cache(maxsize=200_000)(self._encode)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def task(self, text: str) -> tuple[int, ...]:
        """Ids of a task as the policy reads it: the words and a line feed."""
        return self.encode(text + "\n")

    def dialogue(self, question: str, answer: str | None) -> tuple[tuple[int, ...], int]:
        """Ids of a question about the pictures, with its answer if given, and where the answer begins."""
        head = self.encode(self.pictures) + self.encode(question + END + "\nAssistant:")
        if answer is None:
            return head, len(head)
        return head + self.encode(" " + answer + END), len(head)

    def decode(self, ids: list[int]) -> str:
        """The text of ids up to the end of the utterance."""
        end = self.ids[END]
        return str(self.tokenizer.decode(ids[: ids.index(end)] if end in ids else ids)).strip()


if __name__ == "__main__":
    train_tokenizer(Path(sys.argv[1]))
