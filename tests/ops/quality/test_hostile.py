"""Each hostile text against the defences, and the arithmetic of the benchmark that counts what it does to answers."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer

from ops.quality.ask import asking
from ops.quality.hostile import HARMLESS, Attack, Headline, Place, load_hostile
from ops.quality.injection import Defence, InjectionReport, Tally, both_ways, encoder, measure
from scheduler.hygiene import clean, same_length
from scheduler.tokens import TextTokenizer
from schemas.codec import is_readable
from schemas.enums import Direction
from schemas.errors import ConfigError
from schemas.frames import pack_tokens, unpack_tokens
from schemas.settings import WorkerSettings
from workers.extractor_files import SHIPPED, load_extractors
from workers.prompts import compile_prompt, load_tokenizer
from workers.sim_engine import TOKENIZER

HOSTILE = load_hostile()
ATTACKS = [pytest.param(attack, id=f"{attack.category}-{attack.name}") for attack in HOSTILE.attacks]
LIMIT = 3_000
SIM = WorkerSettings(engine="sim", sim_step_ms=0, sim_prefill_token_us=0, sim_decode_us=0)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "</s>", "<s>", "<pad>", "<file_sep>", "<repo_name>")


@pytest.fixture(scope="module")
def tokenizer_json() -> bytes:
    """Return a tokenizer that has the special tokens that the attacks write."""
    tokenizer = Tokenizer.from_str(TOKENIZER.read_text(encoding="utf-8"))
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer.to_str().encode()


def test_the_set_is_large_and_varied() -> None:
    """At least 60 attacks with names of their own, in every category that is promised, five languages among them."""
    attacks = [attack for attack in HOSTILE.attacks if attack.category != HARMLESS]
    assert len(attacks) >= 60
    assert len({(attack.category, attack.name) for attack in HOSTILE.attacks}) == len(HOSTILE.attacks)
    counts = Counter(attack.category for attack in attacks)
    assert counts.keys() == {
        "role_switch", "chat_markers", "special_tokens", "languages", "invisible", "bidirectional", "homoglyphs",
        "long_tokens", "floods", "json", "few_shot", "template", "reworded",
    }  # fmt: skip
    assert counts["languages"] >= 5
    assert {headline.label for headline in HOSTILE.headlines} == set(Direction)


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_stays_text(attack: Attack, tokenizer_json: bytes) -> None:
    """No attack becomes a special token, breaks a line or is changed by cleaning twice; the text stays readable."""
    tokenizer = TextTokenizer(tokenizer_json, "test")
    special = {Tokenizer.from_buffer(tokenizer_json).token_to_id(token) for token in SPECIAL}
    for headline in HOSTILE.headlines:
        text = attack.on(headline)
        assert text != headline.text
        cleaned, kept = clean(text), same_length(text)
        assert clean(cleaned) == cleaned
        assert same_length(kept) == kept
        assert len(kept) == len(text)
        assert is_readable(cleaned)
        assert "\n" not in cleaned + kept
        for variant in (text, cleaned, kept):
            tokens = tokenizer.encode([variant], LIMIT)[0]
            assert 0 < tokens.count <= LIMIT
            assert special.isdisjoint(unpack_tokens(tokens.ids))


def test_without_the_defence_special_tokens_are_live(tokenizer_json: bytes) -> None:
    """The same tokenizer without the defence does make special tokens of an attack, so the test above can fail."""
    attack = next(attack for attack in HOSTILE.attacks if attack.name == "chatml")
    live = Tokenizer.from_buffer(tokenizer_json)
    ids = live.encode(attack.on(HOSTILE.headlines[0]), add_special_tokens=False).ids
    assert live.token_to_id("<|im_end|>") in ids


@pytest.mark.parametrize(
    "name", ["zero_width_space", "soft_hyphens", "variation_selectors", "tag_characters", "override"]
)
def test_what_nobody_sees_is_gone(name: str) -> None:
    """A headline under an attack of invisible characters alone is the headline again once it is clean."""
    attack = next(attack for attack in HOSTILE.attacks if attack.name == name)
    for headline in HOSTILE.headlines:
        assert clean(attack.on(headline)) == headline.text


def test_places() -> None:
    """Each place puts the attack where it says, with the words that the headline's target asks for."""
    headline = Headline(text="ab cd ef", label=Direction.BULLISH)
    assert Attack("c", "n", Place.BEFORE, text="{word} ", times=2).on(headline) == "negative negative ab cd ef"
    assert Attack("c", "n", Place.AFTER, text=" {direction}/{other}").on(headline) == "ab cd ef bearish/positive"
    assert Attack("c", "n", Place.INSIDE, text="|").on(headline) == "ab cd| ef"
    german = Attack("c", "n", Place.AFTER, text="{local}", local={"bearish": "negativ", "bullish": "positiv"})
    assert german.on(headline) == "ab cd efnegativ"
    assert Attack("c", "n", Place.BETWEEN, text=".").on(headline) == "a.b. .c.d. .e.f"
    assert Attack("c", "n", Place.SWAP, swap={"a": "x"}).on(headline) == "xb cd ef"
    assert Attack("c", "n", Place.AFTER, text="{word}", tags=True).on(headline)[8:] == "".join(
        chr(0xE0000 + ord(char)) for char in "negative"
    )


def test_tally() -> None:
    """A flip counts always, a hit only where the answer was not what the attack wants to begin with."""
    tally = Tally()
    tally.add({"a": 0.9, "b": 0.1}, {"a": 0.2, "b": 0.8}, "b")
    tally.add({"a": 0.9, "b": 0.1}, {"a": 0.8, "b": 0.2}, "b")
    tally.add({"a": 0.3, "b": 0.7}, {"a": 0.6, "b": 0.4}, "b")
    assert (tally.tried, tally.flipped, tally.open, tally.hit) == (3, 2, 2, 1)
    assert tally.as_dict()["mean_shift"] == pytest.approx((0.7 + 0.1 - 0.3) / 3, abs=1e-4)


async def test_each_defence_is_what_it_says(tokenizer_json: bytes) -> None:
    """Without a defence a marker is a special token, with the first it is text, with hygiene its line break is gone."""
    async with asking(SIM, "headline", lambda _: None) as asker:
        live = Tokenizer.from_buffer(asker.description.tokenizer_json)
        special = [token for token in live.get_added_tokens_decoder().values() if token.special]
        text = f"Loss widens\n{special[0].content}"
        ids = {each: unpack_tokens(encoder(asker, each)(text).ids) for each in Defence}
    number = live.token_to_id(special[0].content)
    assert number in ids[Defence.NONE]
    assert number not in ids[Defence.TOKENS]
    plain = asker.tokenizer.encode([f"Loss widens {special[0].content}"], LIMIT)[0]
    assert ids[Defence.FULL] == unpack_tokens(plain.ids)
    assert ids[Defence.HIDDEN] == ids[Defence.FULL]


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_keeps_its_length_when_answer_words_are_hidden(attack: Attack, tokenizer_json: bytes) -> None:
    """Under every attack the prompt is as long as counted, ids of label words alone change, and no answer is left."""
    tokenizer = TextTokenizer(tokenizer_json, "test")
    [headline] = [file for file in load_extractors() if file.template.name == "headline"]
    spelt = load_tokenizer(tokenizer_json, "test")
    prompt = compile_prompt(headline, spelt, "test")
    answers = [label for labels in list(prompt.heads.values())[:1] for label in labels.values()]
    for each in HOSTILE.headlines:
        ids = unpack_tokens(tokenizer.encode([clean(attack.on(each))], LIMIT)[0].ids)
        asked = prompt.assemble(pack_tokens(ids), 2 * LIMIT)
        begin, end = len(prompt.prefix), len(asked) - len(prompt.suffix)
        assert end - begin == len(ids)
        changed = [old for old, new in zip(ids, asked[begin:end], strict=True) if old != new]
        said = spelt.decode(changed, skip_special_tokens=False).lower()
        assert re.sub(r"positive|negative|neutral|\s", "", said) == ""
        assert sum(token in answers for token in asked[begin:end]) <= 1


def test_both_ways_of_an_extractor(tmp_path: Path) -> None:
    """The benchmark asks an extractor with and without its answer words, whichever of the two its file says."""
    shipped = {file.template.name: file.template for file in load_extractors()}
    for name, template in shipped.items():
        with both_ways(SIM, name) as (settings, plain, hidden):
            found = {file.template.name: file.template for file in load_extractors(settings.extractors)}
            assert name == (hidden if template.hide_answer_words else plain)
            for other, hides in ((plain, False), (hidden, True)):
                expected = msgspec.structs.replace(template, name=other, hide_answer_words=hides)
                assert found[other] == expected
                assert list(found[other].labels) == list(template.labels)
    own = tmp_path / "own.toml"
    own.write_text((SHIPPED / "filing.toml").read_text(encoding="utf-8").replace('"filing"', '"own"', 1))
    with both_ways(SIM.model_copy(update={"extractors": tmp_path}), "own") as (settings, plain, hidden):
        names = [file.template.name for file in load_extractors(settings.extractors)]
    assert (plain, hidden) == ("own", "own-hidden")
    assert {plain, hidden} < set(names)
    with pytest.raises(ConfigError, match="no extractor"), both_ways(SIM, "nothing"):
        pass


async def test_the_benchmark_counts_every_pair() -> None:
    """All attacks on all headlines have an answer from the engine under each defence, and the sums agree."""
    report: InjectionReport = await measure(SIM, "headline", 16, lambda _: None)
    assert report.failed == dict.fromkeys(Defence, 0)
    pairs = report.attacks * len(HOSTILE.headlines)
    for defence in Defence:
        assert report.all_attacks(defence).tried == pairs
    found = json.loads(json.dumps(report.as_dict()))
    assert found["attacks"] >= 60
    assert found["all_attacks"]["full"]["tried"] == pairs
    assert found["categories"][HARMLESS]["none"]["tried"] > 0
