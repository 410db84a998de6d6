"""Encoding and decoding between text and token ids, for one tokenizer.

Invariants: sampled ids are never encoded again; foreign text never becomes a special token; the text of sampled ids is
built token by token, so that places in the text are places in token space.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from milonga.config import PolicySection
from milonga.engine.base import Completion
from milonga.engine.local.models import explain_unloadable, load_tokenizer
from milonga.engine.local.templates import ANSWER, FOLLOWED, NEXT, OPENING, SENTINEL, render_template
from milonga.errors import ConfigError, UserError
from milonga.reading import check_text
from milonga.types import Prompt


class Codec:
    """Encodes prompts, with or without the tokenizer's chat template, and decodes sampled ids."""

    def __init__(self, tokenizer: Any, chat: str = "auto") -> None:
        self.tokenizer = tokenizer
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if chat == "on" and not has_template:
            raise ConfigError("chat = 'on', but the tokenizer has no chat template; use 'off' or 'auto'")
        self.chat = has_template and chat != "off"
        self.head, self.tail = self._encode_template() if self.chat else (self._encode_start(), [])
        self.pieces = _list_token_bytes(tokenizer)
        self.sizes = np.array([len(piece) for piece in self.pieces or ()], dtype=np.int64)
        self.ascii = np.array([piece.isascii() for piece in self.pieces or ()], dtype=bool)
        self.special = _find_special_ids(tokenizer)
        self._enders: dict[tuple[str, ...], frozenset[int]] = {}
        self._turns: tuple[list[int], list[int]] | None = None

    def _encode_start(self) -> list[int]:
        """The ids that the tokenizer puts before plain text (often a beginning-of-sequence token)."""
        with_specials = self.tokenizer.encode("a", add_special_tokens=True)
        bare = self.tokenizer.encode("a", add_special_tokens=False)
        return with_specials[: with_specials.index(bare[0])] if bare and bare[0] in with_specials else []

    def _encode_template(self) -> tuple[list[int], list[int]]:
        """The ids of the chat template before and after the user's text, with the turn handed to the model."""
        rendered = render_template(self.tokenizer, OPENING)
        before, found, after = rendered.partition(SENTINEL)
        if not found:
            raise ConfigError("the tokenizer's chat template does not show the user's text; set chat = 'off'")
        return (
            self.tokenizer.encode(before, add_special_tokens=False),
            self.tokenizer.encode(after, add_special_tokens=False),
        )

    def get_turn_markers(self) -> tuple[list[int], list[int]]:
        """The ids between the model's turn and the next user text, and those after that text. The first of them close the
        model's turn. Without a template there is the end-of-sequence token alone."""
        if self._turns is None:
            end = self.tokenizer.eos_token_id
            self._turns = self._encode_turn_markers() if self.chat else ([] if end is None else [int(end)], [])
        return self._turns

    def _encode_turn_markers(self) -> tuple[list[int], list[int]]:
        """Read the turn markers off a conversation of placeholders: real text never goes through the template again."""
        rendered = render_template(self.tokenizer, FOLLOWED)
        between, found, after = rendered.partition(ANSWER)[2].partition(NEXT)
        if not found:
            raise ConfigError("the tokenizer's chat template does not show a conversation of several turns; set chat = 'off'")
        return (
            self.tokenizer.encode(between, add_special_tokens=False),
            self.tokenizer.encode(after, add_special_tokens=False),
        )

    def encode_next_turns(self, prompts: Sequence[Prompt], last: Sequence[int]) -> list[NDArray[np.int64]]:
        """Encode the next user turns of conversations that end in the tokens `last`: turn markers and text.

        Where the model closed its turn itself, by the token that the template would close it with, it is not closed again.
        """
        between, after = self.get_turn_markers()
        closing = next((place for place, token in enumerate(between) if token in self.special), None)
        out = []
        for ids, end in zip(self._encode_parts(prompts), last, strict=True):
            opening = between[closing + 1 :] if closing is not None and end == between[closing] else between
            out.append(np.array([*opening, *ids, *after], dtype=np.int64))
        return out

    def encode(self, prompt: Prompt) -> NDArray[np.int64]:
        return self.encode_all([prompt])[0]

    def encode_all(self, prompts: Sequence[Prompt]) -> list[NDArray[np.int64]]:
        """Encode whole prompts, with what the tokenizer or its chat template puts around them."""
        return [np.array([*self.head, *ids, *self.tail], dtype=np.int64) for ids in self._encode_parts(prompts)]

    def _encode_parts(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Encode the parts of prompts. Neighbouring parts of one kind are joined: ours may hold special tokens, others not.

        A text that occurs in many prompts is encoded once, and different ones in parallel on all cores: a GPU waits meanwhile.
        """
        rows = [
            [
                (foreign, "".join(part.text for part in parts))
                for foreign, parts in groupby(prompt, key=lambda part: part.foreign)
            ]
            for prompt in prompts
        ]
        distinct = dict.fromkeys(piece for row in rows for piece in row)
        own = [text for foreign, text in distinct if not foreign]
        others = [text for foreign, text in distinct if foreign]
        ids = dict(zip(((False, text) for text in own), self._encode_own(own), strict=True))
        ids |= zip(((True, text) for text in others), self._encode_foreign(others), strict=True)
        return [list(chain(*(ids[piece] for piece in row))) for row in rows]

    def _encode_own(self, texts: list[str]) -> list[list[int]]:
        return self._tokenize(texts) if texts else []

    def _tokenize(self, texts: list[str], **how: Any) -> list[list[int]]:
        try:
            return list(self.tokenizer(texts, add_special_tokens=False, **how)["input_ids"])
        except TypeError:  # which says no more; looked into only now, since it is rare and prompts are many
            for text in texts:
                _require_whole_text(text)
            raise

    def encode_foreign(self, text: str) -> list[int]:
        """Encode text we did not write: a special token spelt out in it is encoded as ordinary characters."""
        return self._encode_foreign([text])[0]

    def _encode_foreign(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        return [self._replace_special_ids(ids) for ids in self._tokenize(texts, split_special_tokens=True)]

    def _replace_special_ids(self, ids: list[int]) -> list[int]:
        """Replace special ids in foreign text by ordinary tokens: some vocabularies hold their names as ordinary words too."""
        if self.special.isdisjoint(ids):
            return ids
        return [part for token in ids for part in (self._spell_special_token(token) if token in self.special else [token])]

    def _spell_special_token(self, token: int) -> list[int]:
        """Spell the name of a special token in ordinary tokens, character by character; else unknown, or left out."""
        vocabulary = self.tokenizer.get_vocab()
        named = {byte: character for character, byte in map_byte_characters().items()}
        unknown = self.tokenizer.unk_token_id
        out: list[int] = []
        for place, character in enumerate(self.tokenizer.convert_ids_to_tokens(token)):
            forms = [[character], [f"##{character}"]][:: 1 if place == 0 else -1]
            forms.append([f"<0x{byte:02X}>" for byte in character.encode()])
            if self.pieces is not None:
                forms = [[named[byte] for byte in character.encode()]]
            spare = [] if unknown is None or unknown in self.special else [unknown]
            out += next(([vocabulary[p] for p in form] for form in forms if vocabulary.keys() >= set(form)), spare)
        return out

    def decode_ids(self, ids: Sequence[int]) -> str:
        """Decode sampled ids. Ids beyond the tokenizer's (a padded vocabulary) have no text."""
        if self.pieces is not None:
            return b"".join(self.pieces[i] for i in ids if i < len(self.pieces)).decode("utf-8", "replace")
        decoded: str = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return decoded

    def decode_with_ends(self, ids: Sequence[int] | NDArray[np.int64]) -> tuple[str, NDArray[np.int64]]:
        """Decode sampled ids; also return for each token how many characters are complete after it."""
        if self.pieces is not None and (plain := self._decode_ascii(np.asarray(ids, dtype=np.int64))) is not None:
            return plain
        ids = [int(i) for i in ids]
        text = self.decode_ids(ids)
        ends = self._find_byte_ends(ids) if self.pieces is not None else self._find_window_ends(ids, text)
        if ends is None:
            ends = self._find_prefix_ends(ids)
        return text, np.minimum(np.maximum.accumulate(np.array(ends, dtype=np.int64)), len(text))

    def encode_completion(self, text: str, end: bool) -> Completion:
        """Encode a given text as if it had been sampled, closed by the end-of-sequence token if `end`."""
        ids = np.array(self.encode_foreign(text), dtype=np.int64)
        spelt, ends = self.decode_with_ends(ids)
        if end:
            ids = np.append(ids, int(self.tokenizer.eos_token_id))
            ends = np.append(ends, len(spelt))
        return Completion(ids, np.zeros(len(ids)), "eos" if end else "length", text, ends)

    def _decode_ascii(self, ids: NDArray[np.int64]) -> tuple[str, NDArray[np.int64]] | None:
        """Decode quickly if every byte is a character of its own (ASCII); None if one is not."""
        assert self.pieces is not None
        known = ids < len(self.pieces)  # ids beyond the tokenizer's have no text
        if not self.ascii[ids[known]].all():
            return None
        sizes = np.zeros(len(ids), dtype=np.int64)
        sizes[known] = self.sizes[ids[known]]
        return b"".join([self.pieces[i] for i in ids[known].tolist()]).decode(), np.cumsum(sizes)

    def _find_byte_ends(self, ids: list[int]) -> list[int]:
        assert self.pieces is not None
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        ends, total = [], 0
        for token in ids:
            total += len(decoder.decode(self.pieces[token])) if token < len(self.pieces) else 0
            ends.append(total)
        return ends

    def _find_window_ends(self, ids: list[int], text: str) -> list[int] | None:
        """Ends by decoding each token behind those just before it; None where these pieces do not join to the text."""
        ends, done, start, read = [], "", 0, 0
        for count in range(1, len(ids) + 1):
            before, after = self.decode_ids(ids[start:read]), self.decode_ids(ids[start:count])
            if len(after) > len(before) and not after.endswith("\ufffd"):
                done += after[len(before) :]
                start, read = read, count
            ends.append(len(done))
        return ends if text.startswith(done) and set(text[len(done) :]) <= {"\ufffd"} else None

    def _find_prefix_ends(self, ids: list[int]) -> list[int]:
        """Ends by decoding every prefix: right for any tokenizer, and slow."""
        ends = [0]
        for count in range(1, len(ids) + 1):
            whole = self.decode_ids(ids[:count])
            ends.append(ends[-1] if whole.endswith("\ufffd") else len(whole))
        return ends[1:]

    def find_stop_candidates(self, stop: tuple[str, ...]) -> frozenset[int] | None:
        """Find the tokens that can complete a stop string: those with its last byte. None: any token may."""
        if self.pieces is None:
            return None
        if stop not in self._enders:
            last = {s.encode()[-1] for s in stop}
            self._enders[stop] = frozenset(i for i, piece in enumerate(self.pieces) if not last.isdisjoint(piece))
        return self._enders[stop]


def load_codecs(policies: Mapping[str, PolicySection]) -> dict[str, Codec]:
    """Load the codec of each policy; those of one model share it, since a large vocabulary takes seconds to list."""
    made: dict[tuple[str, str], Codec] = {}
    for section in policies.values():
        if (section.model, section.chat) not in made:
            tokenizer = load_tokenizer(section.model)
            with explain_unloadable(f"model '{section.model}'"):
                made[section.model, section.chat] = Codec(tokenizer, section.chat)
    return {name: made[section.model, section.chat] for name, section in policies.items()}


def _require_whole_text(text: str) -> None:
    """Refuse a prompt with half of a character, as code of the user's may write one."""
    try:
        check_text(text)
    except ValueError as error:
        raise UserError(f"the prompt {text!r:.80} cannot be used: {error}") from None


def _find_special_ids(tokenizer: Any) -> frozenset[int]:
    """Find the special tokens, which steer the model. The unknown token, unless it is one of them too, only stands for a
    character."""
    marked = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    steering = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    return frozenset((marked | set(tokenizer.all_special_ids)) - ({tokenizer.unk_token_id} - steering))


def _list_token_bytes(tokenizer: Any) -> list[bytes] | None:
    """The bytes of every token, for byte-level tokenizers; None for others, whose pieces do not simply join."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = json.loads(backend.to_str())["decoder"] if backend is not None else None
    if decoder is None or any(part["type"] != "ByteLevel" for part in decoder.get("decoders", [decoder])):
        return None
    table = map_byte_characters()
    added = {token.content: token.content.encode() for token in tokenizer.added_tokens_decoder.values()}
    pieces = []
    for token in tokenizer.convert_ids_to_tokens(list(range(max(tokenizer.get_vocab().values()) + 1))):
        if token is None:
            pieces.append(b"")
        elif token in added:
            pieces.append(added[token])
        elif all(c in table for c in token):
            pieces.append(bytes(table[c] for c in token))
        else:
            return None
    return pieces


def map_byte_characters() -> dict[str, int]:
    """The characters that stand for bytes in byte-level vocabularies: printable Latin-1 as itself, others above."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    hidden = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(256 + n): byte for n, byte in enumerate(hidden)})
    return table
