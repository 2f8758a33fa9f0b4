"""What is asked for: a text or a number becomes the token that a user means, and a number in nats."""

import pytest
import torch

import wherefrom
from wherefrom import Destination, InputError, Target
from wherefrom.evidence import target as room
from wherefrom.evidence.target import find_target

WITH_BLANK, WITHOUT_BLANK = 5099, 25653  # " Mary" and "Mary"


def flat(tokenizer, **likely):
    """Logits that are 0 but for the tokens named."""
    logits = torch.zeros(tokenizer.vocabulary_size)
    for token, value in likely.items():
        logits[int(token.removeprefix("t"))] = value
    return logits


@pytest.fixture(scope="module")
def words(smollm):
    """The real vocabulary: words with and without a blank before them are different tokens."""
    tokenizer = smollm.tokenizer
    assert (tokenizer.one_token(" Mary"), tokenizer.one_token("Mary")) == (WITH_BLANK, WITHOUT_BLANK)
    return tokenizer


def test_without_a_wish_it_is_the_likeliest_token(words):
    assert find_target(words, flat(words, t123=0.5), None) == Target(123)
    assert find_target(words, flat(words, t123=0.5), None, " Mary") == Target(123, WITH_BLANK)


def test_a_text_that_is_one_token_is_that_token(words):
    logits = flat(words)
    assert find_target(words, logits, " Mary") == Target(WITH_BLANK)
    assert find_target(words, logits, " Mary", " John") == Target(WITH_BLANK, words.one_token(" John"))
    assert find_target(words, logits, "\n") == Target(words.one_token("\n"))
    assert find_target(words, logits, " ") == Target(words.one_token(" "))


def test_of_a_word_with_and_without_a_blank_the_likelier_is_meant(words):
    for likelier in (WITH_BLANK, WITHOUT_BLANK):
        logits = flat(words, **{f"t{likelier}": 0.1})
        assert find_target(words, logits, "Mary") == Target(likelier)
        assert find_target(words, logits, 1, "Mary") == Target(1, likelier)
        assert find_target(words, logits, " Mary") == Target(WITH_BLANK)  # a blank that is typed is meant


def test_a_word_that_is_one_token_only_with_a_blank_is_found(words):
    alone = "Giovanni"
    with pytest.raises(InputError):
        words.one_token(alone)
    assert find_target(words, flat(words), alone) == Target(words.one_token(" " + alone))


def test_a_number_is_a_tokens_id(words):
    last = words.vocabulary_size - 1
    assert find_target(words, flat(words), 0) == Target(0)
    assert find_target(words, flat(words), last, 7) == Target(last, 7)


@pytest.mark.parametrize("number", [-1, 49152, 10**9])
def test_a_number_that_is_no_tokens_id(words, number):
    for wanted, against, what in ((number, None, "the target"), (3, number, "the token to compare with")):
        with pytest.raises(InputError) as caught:
            find_target(words, flat(words), wanted, against)
        assert str(caught.value) == (
            f"{what}: expected a token id from 0 to 49151, got {number}. Give the token's text instead."
        )
        assert caught.value.token == number


def test_true_is_no_tokens_id(words):
    with pytest.raises(InputError, match="the target: expected a token id from 0 to 49151, got True"):
        find_target(words, flat(words), True)


def test_a_token_that_a_model_does_not_have(small):
    streams = torch.zeros(1, small.config.width)
    for target in (Target(257), Target(3, 257)):
        for ask in (
            lambda asked: asked.value(small.transformer, streams),
            lambda asked: asked.of_logits(torch.zeros(257)),
        ):
            with pytest.raises(InputError, match="the target: expected a token id from 0 to 256, got 257") as caught:
                ask(target)
            assert caught.value.token == 257
    assert float(Target(256).of_logits(torch.zeros(257))) == pytest.approx(-5.549076, abs=1e-6)  # -log 257


def test_a_text_of_several_tokens_offers_its_pieces(words):
    with pytest.raises(InputError) as caught:
        find_target(words, flat(words), " Mary John")
    assert caught.value.pieces == (" Mary", " John")
    assert str(caught.value) == (
        'the token " Mary John": expected exactly one token of this model, got 2 (" Mary", " John"). '
        "Ask for one of these pieces."
    )
    with pytest.raises(InputError) as caught:
        find_target(words, flat(words), " Mary", "Mary!")
    assert caught.value.pieces == ("Mary", "!")
    assert [words.label(number) for number in caught.value.ids] == ["Mary", "!"]


def test_nothing_is_no_token(words):
    with pytest.raises(InputError, match=r'the token "": expected exactly one token of this model, got an empty text'):
        find_target(words, flat(words), "")


def test_a_token_is_not_compared_with_itself(words):
    for wanted, against in ((" Mary", " Mary"), (" Mary", WITH_BLANK), (None, WITH_BLANK)):
        with pytest.raises(InputError) as caught:
            find_target(words, flat(words, t5099=1.0), wanted, against)
        assert str(caught.value) == (
            'the token to compare with: expected another token than the target, got " Mary" for both. '
            "Leave it out to ask for the target alone."
        )
        assert caught.value.token == WITH_BLANK


@pytest.mark.parametrize("target", [Target(33), Target(200, 7)], ids=str)
@pytest.mark.parametrize("strip", [100, 257, 4096])
def test_a_value_is_that_of_the_logits(small, monkeypatch, target, strip):
    monkeypatch.setattr(room, "VOCABULARY_STRIP", strip)
    streams = torch.randn(13, small.config.width, generator=torch.Generator().manual_seed(3))
    logits = small.transformer.logits(streams).double()
    value = target.value(small.transformer, streams)
    log_probabilities = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
    expected = log_probabilities[:, target.id]
    if target.against is not None:
        expected = expected - log_probabilities[:, target.against]
    assert (value.dtype, value.shape) == (torch.float64, (13,))
    assert (value - expected).abs().max() <= 1e-5
    assert (value - target.of_logits(small.transformer.logits(streams))).abs().max() <= 1e-5
    assert target.of_logits(logits[0]).shape == ()


def test_a_value_on_paper():
    logits = torch.log(torch.tensor([1.0, 2.0, 5.0]))
    assert float(Target(1).of_logits(logits)) == pytest.approx(-1.3862944, abs=1e-6)  # log 2/8
    assert float(Target(2, 1).of_logits(logits)) == pytest.approx(0.9162907, abs=1e-6)  # log 5/2


def test_a_position_of_a_text_in_nats(small):
    last = Destination(small, wherefrom.record(small, "some text"))
    logits = last.logits()
    target = find_target(small.tokenizer, logits, "!")
    assert target == Target(small.tokenizer.one_token("!"))
    assert float(target.of_logits(logits)) == pytest.approx(float(torch.log_softmax(logits, -1)[target.id]), abs=1e-5)
