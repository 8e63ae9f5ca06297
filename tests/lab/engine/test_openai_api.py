"""Request bodies: how large a prompt is, what is refused; answers: what they look like."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halffull_lab.openai_api import Answer, ApiError, Generation, parse_generation, text_tokens


def parse(fields: object, *, chat: bool = False) -> Generation:
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return parse_generation(body, chat=chat, model="m", max_model_len=1_000)


def chat(content: object, **more: object) -> Generation:
    return parse({"messages": [{"role": "user", "content": content}], **more}, chat=True)


@given(st.integers(1, 20_000))
def test_n_words_are_n_tokens_in_4n_bytes(n: int) -> None:
    text = " the" * n
    assert text_tokens(text) == n
    assert len(text.encode()) == 4 * n


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("ééé", 2), ("\ud800", 1)])
def test_text_is_a_token_per_four_bytes_rounded_up(text: str, tokens: int) -> None:
    assert text_tokens(text) == tokens


@pytest.mark.parametrize(
    ("prompt", "sizes"),
    [("abcdefgh", (2,)), ([1, 2, 3], (3,)), (["abcd", "abcdefgh"], (1, 2)), ([[1], [2, 3]], (1, 2))],
)
def test_prompts(prompt: object, sizes: tuple[int, ...]) -> None:
    assert parse({"prompt": prompt}).prompts == sizes


def test_an_image_counts_as_900_however_large() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 2_000_000}}
    assert chat([{"type": "text", "text": "abcd"}, image]).prompts == (901,)


def test_a_chat_is_the_sum_of_its_texts() -> None:
    messages = [
        {"role": "system", "content": "abcd"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": "abcdefgh"},
    ]
    assert parse({"messages": messages}, chat=True).prompts == (3,)


def test_output_lengths() -> None:
    assert parse({"prompt": "a", "max_tokens": 7}).output_tokens == 7
    assert parse({"prompt": "a"}).output_tokens == 16
    assert chat("a", max_completion_tokens=5, max_tokens=7).output_tokens == 5
    default = chat("a")
    assert (default.output_tokens, default.finish_reason) == (128, "stop")
    assert chat("abcd" * 990).output_tokens == 10  # no more than there is room for


def test_unknown_parameters_are_accepted() -> None:
    assert parse({"prompt": "a", "ignore_eos": True, "temperature": 0.3, "logit_bias": {}, "x": [1]}).n == 1


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        (b"", 400, None),
        (b"\xff\xfe", 400, None),
        (b"[" * 100_000, 400, None),
        ([1], 400, None),
        ({}, 400, "prompt"),
        ({"prompt": 3}, 400, "prompt"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [True]}, 400, "prompt"),
        ({"prompt": [1, "a"]}, 400, "prompt"),
        ({"prompt": [[]]}, 400, "prompt"),
        ({"prompt": "a", "model": "other"}, 404, "model"),
        ({"prompt": "a", "model": 5}, 404, "model"),
        ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        ({"prompt": "a", "max_tokens": 1.5}, 400, "max_tokens"),
        ({"prompt": "a", "max_tokens": True}, 400, "max_tokens"),
        ({"prompt": "a", "max_tokens": 10**30}, 400, "max_tokens"),
        ({"prompt": "a", "n": 0}, 400, "n"),
        ({"prompt": "a", "n": 2_000}, 400, "n"),
        ({"prompt": "a", "stream": "yes"}, 400, "stream"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, 400, "stream_options"),
        ({"prompt": "a", "stream": True, "stream_options": []}, 400, "stream_options"),
    ],
)
def test_bad_completions_are_refused(fields: object, status: int, param: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        parse(fields)
    assert (caught.value.status, caught.value.param) == (status, param)
    error = json.loads(caught.value.body())["error"]
    assert error["code"] == status
    assert error["message"]


@pytest.mark.parametrize(
    "messages",
    [None, [], "hi", ["hi"], [{"content": "hi"}], [{"role": "user", "content": 3}], [{"role": "u", "content": [3]}]],
)
def test_bad_chats_are_refused(messages: object) -> None:
    with pytest.raises(ApiError):
        parse({"messages": messages}, chat=True)


def events(data: bytes) -> list[dict[str, object]]:
    parts = data.decode().split("\n\n")
    assert parts.pop() == ""
    return [json.loads(part.removeprefix("data: ")) for part in parts if part != "data: [DONE]"]


def test_names_are_escaped_and_chat_announces_its_role() -> None:
    generation = chat("a", max_tokens=3, stream=True, stream_options={"include_usage": True})
    answer = Answer(generation, identity='"x"', model='a"b', created=1)
    role, first = events(answer.event(0, 1, first=True, finished=False))
    assert role["model"] == 'a"b'
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}  # type: ignore[index]
    assert first["choices"][0]["delta"] == {"content": " the"}  # type: ignore[index]
    (last,) = events(answer.event(0, 2, first=False, finished=True))
    assert last["choices"][0]["finish_reason"] == "length"  # type: ignore[index]
    (usage,) = events(answer.end_of_stream())
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 1, "total_tokens": 4, "completion_tokens": 3}


def test_a_whole_answer_has_every_choice() -> None:
    answer = Answer(
        parse({"prompt": ["abcd", "abcdefgh"], "max_tokens": 2, "n": 2}), identity="i", model="m", created=1
    )
    whole = json.loads(answer.whole())
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert {choice["text"] for choice in whole["choices"]} == {" the the"}
    assert whole["usage"] == {"prompt_tokens": 3, "total_tokens": 11, "completion_tokens": 8}
