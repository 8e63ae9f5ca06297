"""The OpenAI-compatible API of the emulated engine: request bodies in, response bodies out. Pure.

**Prompt size.** A list of token ids is as long as it is. Text is one token per 4 bytes of UTF-8, rounded up per text:
so `" the" * n` is exactly n tokens in 4·n bytes, which is how a client states a size and has a realistic
Content-Length. A chat's prompt is the sum over the texts of its messages; a template adds nothing; an image counts as
900 tokens, however many bytes it has.

**Output size.** `max_tokens` (`max_completion_tokens`) tokens, exactly, as with `ignore_eos`; without it 16 for
completions, as OpenAI has it, and 128 for chats, which then end with `stop`. Every token reads " the".
"""

import json
from dataclasses import dataclass
from typing import Any, Final

BYTES_PER_TOKEN: Final = 4
TOKENS_PER_IMAGE: Final = 900
WORD: Final = " the"
"""The text of one token, of prompts made here and of every output."""
DEFAULT_COMPLETION_TOKENS: Final = 16
DEFAULT_CHAT_TOKENS: Final = 128
MAX_SEQUENCES: Final = 1_024
"""Prompts × n of one request."""


class ApiError(Exception):
    """An answer other than 200; renders as OpenAI's error object."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """The JSON text, as vLLM writes it."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return json.dumps({"error": error}).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What a completions or chat request asks for, as far as the emulated engine cares."""

    chat: bool
    prompts: tuple[int, ...]
    """Tokens of each; a chat has one."""
    n: int
    output_tokens: int
    finish_reason: str
    stream: bool
    include_usage: bool
    priority: int


def text_tokens(text: str) -> int:
    """The tokens of a text: one per 4 bytes, rounded up."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // BYTES_PER_TOKEN)


def parse_json(body: bytes) -> dict[str, Any]:
    """The object in `body`.

    Raises:
        ApiError: it is no JSON object.
    """
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"The body is not valid JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ApiError("The body must be a JSON object.")
    return parsed


def parse_generation(body: bytes, *, chat: bool, model: str, max_model_len: int) -> Generation:
    """Read the body of a completions or chat request. Parameters that do not matter here are accepted unread.

    Raises:
        ApiError: it asks for something that is not there (404) or makes no sense (400).
    """
    fields = parse_json(body)
    if fields.get("model") not in (None, model):
        raise ApiError(
            f"The model `{fields['model']}` does not exist.", status=404, kind="NotFoundError", param="model"
        )
    prompts = (_chat_tokens(fields),) if chat else _prompts(fields)
    n = _integer(fields, "n", default=1, least=1)
    if n * len(prompts) > MAX_SEQUENCES:
        raise ApiError(f"At most {MAX_SEQUENCES} sequences per request.", param="n")
    output, finish_reason = _output_tokens(fields, chat=chat, left=max_model_len - max(prompts))
    stream = _boolean(fields, "stream")
    options = fields.get("stream_options")
    if options is not None and not (stream and isinstance(options, dict)):
        raise ApiError("Stream options can only be defined when `stream=True`.", param="stream_options")
    return Generation(
        chat=chat,
        prompts=prompts,
        n=n,
        output_tokens=output,
        finish_reason=finish_reason,
        stream=stream,
        include_usage=_boolean(options, "include_usage") if options else False,
        priority=_integer(fields, "priority", default=0),
    )


def _output_tokens(fields: dict[str, Any], *, chat: bool, left: int) -> tuple[int, str]:
    for name in ("max_completion_tokens", "max_tokens") if chat else ("max_tokens",):
        if fields.get(name) is not None:
            return _integer(fields, name, least=1), "length"
    if chat:
        return max(1, min(DEFAULT_CHAT_TOKENS, left)), "stop"
    return DEFAULT_COMPLETION_TOKENS, "length"


def _integer(fields: dict[str, Any], name: str, *, default: int = 0, least: int | None = None) -> int:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise ApiError(f"`{name}` must be an integer.", param=name)
    if least is not None and value < least:
        raise ApiError(f"`{name}` must be at least {least}, got {value}.", param=name)
    if abs(value) >= 2**31:
        raise ApiError(f"`{name}` is out of range.", param=name)
    return value


def _boolean(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(f"`{name}` must be a boolean.", param=name)
    return bool(value)


def _prompts(fields: dict[str, Any]) -> tuple[int, ...]:
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return (text_tokens(prompt),)
    if isinstance(prompt, list) and prompt:
        if _is_token_list(prompt):
            return (len(prompt),)
        if all(isinstance(item, str) for item in prompt):
            return tuple(text_tokens(item) for item in prompt)
        if all(isinstance(item, list) and _is_token_list(item) for item in prompt):
            return tuple(len(item) for item in prompt)
    raise ApiError("`prompt` must be a string, a list of token ids, or a list of either.", param="prompt")


def _is_token_list(items: list[Any]) -> bool:
    # type() in a set: a prompt may have a hundred thousand ids, and True is no id.
    return set(map(type, items)) == {int}


def _chat_tokens(fields: dict[str, Any]) -> int:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError("`messages` must be a list with at least one message.", param="messages")
    tokens = 0
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ApiError("A message must be an object with a `role`.", param="messages")
        content = message.get("content")
        if isinstance(content, str):
            tokens += text_tokens(content)
        elif isinstance(content, list):
            tokens += sum(_part_tokens(part) for part in content)
        elif content is not None:
            raise ApiError("`content` must be a string or a list of parts.", param="messages")
    return tokens


def _part_tokens(part: object) -> int:
    if isinstance(part, dict):
        kind, text = part.get("type"), part.get("text")
        if kind in ("text", "input_text") and isinstance(text, str):
            return text_tokens(text)
        if kind in ("image_url", "input_image", "image"):
            return TOKENS_PER_IMAGE
    raise ApiError("A part of a message must be a text or an image.", param="messages")


class Answer:
    """Writes the answer to one `Generation`: events while tokens come, or one object at the end."""

    __slots__ = ("_generation", "_head", "_tails", "identity", "model")

    def __init__(self, generation: Generation, *, identity: str, model: str, created: int) -> None:
        self.identity = identity
        self.model = model
        self._generation = generation
        kind = "chat.completion" if generation.chat else "text_completion"
        if generation.chat and generation.stream:
            kind += ".chunk"
        self._head = (
            f'{{"id":{json.dumps(identity)},"object":"{kind}","created":{created},'
            f'"model":{json.dumps(model)},"choices":['
        )
        usage = ',"usage":null' if generation.include_usage else ""
        self._tails = tuple(
            f'"}},"logprobs":null,"finish_reason":{reason}}}]{usage}}}\n\n'
            if generation.chat
            else f'","logprobs":null,"finish_reason":{reason},"stop_reason":null}}]{usage}}}\n\n'
            for reason in ("null", f'"{generation.finish_reason}"')
        )

    def event(self, index: int, tokens: int, *, first: bool, finished: bool) -> bytes:
        """What a stream says about `tokens` more tokens of choice `index`."""
        head, text = f"data: {self._head}", WORD * tokens
        if not self._generation.chat:
            return f'{head}{{"index":{index},"text":"{text}{self._tails[finished]}'.encode()
        event = f'{head}{{"index":{index},"delta":{{"content":"{text}{self._tails[finished]}'
        if first:
            event = f'{head}{{"index":{index},"delta":{{"role":"assistant","content":"{self._tails[False]}{event}'
        return event.encode()

    def end_of_stream(self) -> bytes:
        """What follows the last token: the usage if it was asked for, and [DONE]."""
        done = "data: [DONE]\n\n"
        if self._generation.include_usage:
            done = f'data: {self._head}],"usage":{self._usage()}}}\n\n{done}'
        return done.encode()

    def whole(self) -> bytes:
        """The body of an answer that is not a stream."""
        generation = self._generation
        text, reason = WORD * generation.output_tokens, generation.finish_reason
        choices = []
        for index in range(len(generation.prompts) * generation.n):
            content = (
                f'"message":{{"role":"assistant","content":"{text}"}},' if generation.chat else f'"text":"{text}",'
            )
            choices.append(
                f'{{"index":{index},{content}"logprobs":null,"finish_reason":"{reason}","stop_reason":null}}'
            )
        return f'{self._head}{",".join(choices)}],"usage":{self._usage()}}}'.encode()

    def _usage(self) -> str:
        generation = self._generation
        prompt = sum(generation.prompts)
        completion = len(generation.prompts) * generation.n * generation.output_tokens
        return json.dumps(
            {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
        )
