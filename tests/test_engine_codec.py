"""Between text and ids (law 1): what was sampled spells its text token by token; foreign text never becomes special."""

from __future__ import annotations

from functools import cache
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_helpers import CORPUS, SPECIALS, TEMPLATE, tokenizer
from milonga.config import PolicySection
from milonga.engine.local import templates
from milonga.engine.local.codec import Codec, load_codecs, map_byte_characters
from milonga.errors import ConfigError
from milonga.types import Part

KINDS = ("bytes", "chat", "word", "meta", "unigram")
TEXTS = ("the answer is 42.", "naïve café — 東京 🙂👍🏽", "two  spaces\n\n\ttabs ", "")
fixed = settings(deadline=None, derandomize=True, max_examples=150)


@cache
def codec(kind: str, chat: str = "off") -> Codec:
    return Codec(tokenizer(kind), chat)


def decode(kind: str, ids: list[int]) -> str:
    text: str = tokenizer(kind).decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text


# Spelling.


@fixed
@given(st.sampled_from(KINDS), st.lists(st.integers(0, 299), max_size=30))
def test_spelling_joins_to_what_the_tokenizer_decodes(kind: str, drawn: list[int]) -> None:
    ids = [i % len(tokenizer(kind)) for i in drawn]
    text, ends = codec(kind).decode_with_ends(ids)
    assert text == decode(kind, ids) == codec(kind).decode_ids(ids)
    assert len(ends) == len(ids)
    assert (np.diff(ends, prepend=0) >= 0).all() and (ends <= len(text)).all()


@fixed
@given(st.sampled_from(("bytes", "chat")), st.text(max_size=12))
def test_every_prefix_of_readable_text_is_a_prefix_of_its_ids(kind: str, text: str) -> None:
    """The characters counted after a token are exactly those that its prefix decodes to."""
    ids = codec(kind).encode_foreign(text)
    whole, ends = codec(kind).decode_with_ends(ids)
    for count, end in enumerate(ends, 1):
        decoded = decode(kind, ids[:count])
        assert decoded.rstrip("\ufffd") == whole[:end].rstrip("\ufffd")


@pytest.mark.parametrize("kind", ["bytes", "meta"])
def test_a_character_cut_across_tokens_is_complete_only_after_the_last(kind: str) -> None:
    ids = codec(kind).encode_foreign("a🙂b")
    text, ends = codec(kind).decode_with_ends(ids)
    assert text == "a🙂b"
    first, last = ends.tolist().index(1), ends.tolist().index(2)
    assert last - first > 1, "the character is cut"
    cut, ends = codec(kind).decode_with_ends(ids[:last])
    assert cut.rstrip("\ufffd") == "a" and cut != "a" and set(ends[first:].tolist()) == {1}


@pytest.mark.parametrize("kind", ["word", "meta", "unigram"])
def test_windows_and_prefixes_give_the_same_ends(kind: str) -> None:
    one = codec(kind)
    ids = one.encode_foreign(" ".join(CORPUS))
    quick = one._find_window_ends(ids, one.decode_ids(ids))
    assert quick is not None and quick == one._find_prefix_ends(ids)


def test_only_byte_level_tokenizers_have_pieces() -> None:
    assert {kind: codec(kind).pieces is not None for kind in KINDS} == {
        "bytes": True, "chat": True, "word": False, "meta": False, "unigram": False
    }  # fmt: skip


def test_the_byte_table_is_a_bijection() -> None:
    assert sorted(map_byte_characters().values()) == list(range(256))


def test_spelling_nothing_is_nothing() -> None:
    for kind in KINDS:
        text, ends = codec(kind).decode_with_ends([])
        assert text == "" and len(ends) == 0


@pytest.mark.parametrize("kind", ["bytes", "meta"])
def test_ids_beyond_the_tokenizer_spell_nothing(kind: str) -> None:
    a = codec(kind).encode_foreign("a")
    text, ends = codec(kind).decode_with_ends([*a, 5000, *codec(kind).encode_foreign("b")[-1:]])
    assert text == "ab" and ends.tolist()[-3:] == [1, 1, 2]


# Foreign text.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SPECIALS)
def test_foreign_text_never_becomes_a_special_token(kind: str, name: str) -> None:
    special = {tokenizer(kind).convert_tokens_to_ids(s) for s in SPECIALS}
    for text in (name, f"the answer {name} is", f"{name}{name}", f"is{name}the", f"is {name[:3]} {name}"):
        ids = codec(kind).encode_foreign(text)
        assert special.isdisjoint(ids)
        assert decode(kind, ids) == text


@fixed
@given(st.sampled_from(KINDS), st.lists(st.sampled_from([*SPECIALS, "<", "|", ">", "the", " ", "eos", "a"]), max_size=9))
def test_foreign_text_made_of_special_names_stays_text(kind: str, parts: list[str]) -> None:
    text = "".join(parts)
    ids = codec(kind).encode_foreign(text)
    assert codec(kind).special.isdisjoint(ids)
    spaces = kind == "word" or text != text.strip()  # WordPiece keeps no spaces; metaspace takes one at the start
    assert (decode(kind, ids).split() == text.split()) if spaces else decode(kind, ids) == text


@pytest.mark.parametrize("kind", ["bytes", "chat", "meta"])
@pytest.mark.parametrize("text", TEXTS)
def test_foreign_text_decodes_to_itself(kind: str, text: str) -> None:
    assert decode(kind, codec(kind).encode_foreign(text)) == text


def test_unknown_characters_of_foreign_text_stay_unknown_tokens() -> None:
    ids = codec("unigram").encode_foreign("the 東 is")
    assert tokenizer("unigram").unk_token_id in ids


def test_encoding_foreign_text_leaves_our_own_encoding_alone() -> None:
    for kind in KINDS:
        codec(kind).encode_foreign("<eos>")
        own = codec(kind).encode((Part("the <eos>"),))
        assert tokenizer(kind).eos_token_id in own


def test_our_own_parts_may_hold_special_tokens_and_foreign_parts_not() -> None:
    ids = codec("bytes").encode((Part("<|user|>"), Part("<|user|> <eos>", foreign=True), Part("<|model|>")))
    user, model = (tokenizer("bytes").convert_tokens_to_ids(s) for s in ("<|user|>", "<|model|>"))
    assert (ids[0], ids[-1]) == (user, model)
    assert codec("bytes").special.isdisjoint(ids[1:-1].tolist())
    assert decode("bytes", ids.tolist()) == "<|user|><|user|> <eos><|model|>"


def test_neighbouring_parts_of_one_kind_are_encoded_together() -> None:
    parts = (Part("the ans"), Part("wer"), Part("the ", foreign=True), Part("answer", foreign=True))
    joined = (Part("the answer"), Part("the answer", foreign=True))
    assert codec("bytes").encode(parts).tolist() == codec("bytes").encode(joined).tolist()


@fixed
@given(
    st.sampled_from(KINDS),
    st.lists(st.lists(st.builds(Part, st.sampled_from((*TEXTS, *SPECIALS)), st.booleans()), max_size=3), max_size=4),
)
def test_many_prompts_are_encoded_as_each_alone(kind: str, prompts: list[list[Part]]) -> None:
    """By the tokenizer's own single calls; the same text may stand in one prompt as ours and in another as foreign."""
    one, own = codec(kind), tokenizer(kind)
    for prompt, ids in zip(prompts, one.encode_all([tuple(prompt) for prompt in prompts]), strict=True):
        expected = list(one.head)
        for foreign, parts in groupby(prompt, key=lambda part: part.foreign):
            text = "".join(part.text for part in parts)
            expected += one.encode_foreign(text) if foreign else own.encode(text, add_special_tokens=False)
        assert ids.tolist() == expected


# Beginnings and chat templates.


def test_the_beginning_is_what_the_tokenizer_puts_before_text() -> None:
    assert codec("chat").encode((Part("the"),)).tolist() == tokenizer("chat").encode("the")
    assert codec("chat").head == [tokenizer("chat").bos_token_id]
    assert codec("bytes").head == [], "a tokenizer that adds no beginning gets none"


def test_a_prompt_goes_through_the_chat_template_where_there_is_one() -> None:
    own = tokenizer("chat")
    for chat in ("auto", "on"):
        ids = codec("chat", chat).encode((Part("the answer", foreign=True),))
        rendered = own.apply_chat_template(
            [{"role": "user", "content": "the answer"}], tokenize=False, add_generation_prompt=True
        )
        assert decode("chat", ids.tolist()) == rendered == "<|user|>the answer\n<|model|>"
        assert (ids[0], ids[-1]) == tuple(own.convert_tokens_to_ids(["<|user|>", "<|model|>"]))


def test_chat_off_writes_plain_prompts_and_chat_on_needs_a_template() -> None:
    assert decode("chat", codec("chat", "off").encode((Part("the answer"),)).tolist()) == "<bos>the answer"
    assert codec("bytes", "auto").chat is False
    with pytest.raises(ConfigError, match="no chat template"):
        Codec(tokenizer("bytes"), "on")


def test_a_template_that_hides_the_users_text_is_refused() -> None:
    own = tokenizer("chat")
    try:
        own.chat_template = "{% if add_generation_prompt %}<|model|>{% endif %}"
        with pytest.raises(ConfigError, match="does not show the user's text"):
            Codec(own, "auto")
    finally:
        own.chat_template = TEMPLATE


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "does not end within 1 s"),
        ("{{ messages[0]['content'] }}{{ 'x' * 9999999999 }}", "MemoryError"),
        ("{{ raise_exception('roles must\nalternate') }}", "roles must alternate"),
    ],
    ids=["time", "memory", "refusal"],
)
def test_a_template_that_cannot_be_rendered_is_one_line(monkeypatch: pytest.MonkeyPatch, template: str, says: str) -> None:
    own = tokenizer("chat")
    monkeypatch.setattr(templates, "SECONDS", 1)
    monkeypatch.setattr(own, "chat_template", template)
    monkeypatch.setattr(own, "name_or_path", "foreign/model")
    with pytest.raises(
        ConfigError, match=r"^the chat template of 'foreign/model' cannot be rendered: .*; set chat = 'off'$"
    ) as it:
        Codec(own, "auto")
    assert says in str(it.value)
    assert Codec(own, "off").chat is False


def test_a_template_is_rendered_as_the_tokenizer_would(monkeypatch: pytest.MonkeyPatch) -> None:
    own = tokenizer("chat")
    template = "{{ bos_token }}{% for m in messages %}{{ m | tojson }}<é>{% endfor %}{{ eos_token }}"
    monkeypatch.setattr(own, "chat_template", template)
    for talk in templates.TALKS:
        messages = [{"role": role, "content": content} for role, content in talk]
        rendered = own.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert templates.render_template(own, talk) == rendered


def test_policies_of_one_model_share_a_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr("milonga.engine.local.codec.load_tokenizer", lambda name: loaded.append(name) or tokenizer(name))
    sections = {name: PolicySection(model=model, chat=chat) for name, model, chat in (
        ("generator", "chat", "auto"), ("verifier", "chat", "auto"), ("judge", "chat", "off"), ("other", "bytes", "auto"),
    )}  # fmt: skip
    codecs = load_codecs(sections)
    assert codecs["generator"] is codecs["verifier"] and len({id(one) for one in codecs.values()}) == 3
    assert (codecs["generator"].chat, codecs["judge"].chat, loaded) == (True, False, ["chat", "chat", "bytes"])


# Stop strings.


@fixed
@given(st.text(min_size=1, max_size=4))
def test_whoever_completes_a_stop_string_is_watched(stop: str) -> None:
    ids = codec("bytes").encode_foreign(f"a{stop}")
    watched = codec("bytes").find_stop_candidates((stop,))
    assert watched is not None and ids[-1] in watched
