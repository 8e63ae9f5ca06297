"""From a resource in Envoy's own JSON form to the bytes of its `google.protobuf.Any`, the same in every process."""

from typing import Any

from google.protobuf import any_pb2, json_format, symbol_database
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from halffull_extproc.xds.json_form import Resource


def encode(resource: Resource) -> bytes:
    """Check `resource` against its type and serialise it.

    Protobuf orders map entries by a seed of the process, also inside a packed Any. Were that to show, a restarted
    picker would send "another" listener and Envoy would drain every connection: so each Any is packed anew, in order.

    Raises:
        google.protobuf.json_format.ParseError: a field that Envoy does not know, or of another type.
    """
    packed = any_pb2.Any()
    json_format.ParseDict(resource, packed)
    _pack_in_order(packed)
    return packed.SerializeToString(deterministic=True)


def _pack_in_order(message: Message) -> None:
    if isinstance(message, any_pb2.Any):
        content = symbol_database.Default().GetSymbol(message.TypeName())()
        message.Unpack(content)
        _pack_in_order(content)
        message.value = content.SerializeToString(deterministic=True)
        return
    for field, value in message.ListFields():
        for part in _messages(field, value):
            _pack_in_order(part)


def _messages(field: FieldDescriptor, value: Any) -> list[Message]:
    if field.message_type is None:
        return []
    if field.message_type.GetOptions().map_entry:
        return list(value.values()) if field.message_type.fields_by_name["value"].message_type else []
    return list(value) if field.is_repeated else [value]
