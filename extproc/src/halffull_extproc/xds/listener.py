"""The listener `ingress` (Halffull contract 3). It never changes while Envoy runs: a change drains every connection."""

from typing import Final

# Registers the types that the dict below names by "@type".
from envoy.config.listener.v3 import listener_pb2 as _listener
from envoy.extensions.access_loggers.filters.cel.v3 import cel_pb2 as _cel
from envoy.extensions.access_loggers.grpc.v3 import als_pb2 as _als
from envoy.extensions.access_loggers.stream.v3 import stream_pb2 as _stream
from envoy.extensions.filters.http.router.v3 import router_pb2 as _router
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as _hcm

from halffull_extproc import wire
from halffull_extproc.xds.gateway_config import GatewayConfig
from halffull_extproc.xds.json_form import ADS_SOURCE, PICKER, TYPE, Resource, socket_address
from halffull_extproc.xds.resources import EXT_PROC_FILTER, INGRESS, LISTENER, NO_ENGINE, duration

REGISTERED: Final = (_listener, _cel, _als, _stream, _router, _hcm)

MESSAGE_TIMEOUT: Final = "0.1s"
"""What a hung picker costs a request, at most."""
ACCESS_LOG_FLUSH: Final = "0.1s"
ACCESS_LOG_BUFFER: Final = 4 * 1024 * 1024
"""Bytes per worker of Envoy, some thousands of entries."""
UNREADABLE_PATH: Final = "The path of the URL cannot be read: mind zero bytes (%00) and '#'."


def listener(config: GatewayConfig) -> Resource:
    """Build the listener: HTTP connection manager, ext_proc, router, two access logs, TLS when asked for."""
    return {
        "@type": LISTENER,
        "name": INGRESS,
        "address": socket_address(config.listen),
        "traffic_direction": "INBOUND",
        "per_connection_buffer_limit_bytes": 1024 * 1024,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": _connection_manager(config),
                    }
                ],
                **({"transport_socket": _tls_socket()} if config.tls else {}),
            }
        ],
    }


def _connection_manager(config: GatewayConfig) -> Resource:
    return {
        "@type": TYPE + "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": INGRESS,
        "rds": {"route_config_name": INGRESS, "config_source": ADS_SOURCE},
        "http_filters": [
            {"name": EXT_PROC_FILTER, "typed_config": _ext_proc()},
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": TYPE + "envoy.extensions.filters.http.router.v3.Router"},
            },
        ],
        "access_log": [_json_log(), _grpc_log()],
        "local_reply_config": _local_replies(),
        # Paths are judged in the form in which they are forwarded: no /v1/../metrics, no //, no encoded slash.
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "UNESCAPE_AND_FORWARD",
        # Every client is a stranger: x-envoy-* of theirs (timeouts, retries) are removed. An empty list would mean all
        # private addresses and loopback, which clients have in a cluster; nobody has this one.
        "use_remote_address": True,
        "internal_address_config": {"cidr_ranges": [{"address_prefix": "255.255.255.255", "prefix_len": 32}]},
        "preserve_external_request_id": True,
        "common_http_protocol_options": {"headers_with_underscores_action": "DROP_HEADER", "idle_timeout": "3600s"},
        "http2_protocol_options": {
            "max_concurrent_streams": 4096,
            "initial_stream_window_size": 1024 * 1024,
            "initial_connection_window_size": 16 * 1024 * 1024,
        },
        "request_headers_timeout": "10s",
        "stream_idle_timeout": duration(config.idle_timeout),
        "stream_error_on_invalid_http_message": True,
    }


def _ext_proc() -> Resource:
    return {
        "@type": TYPE + "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": PICKER}},
        # Without a picker requests pass unpicked; a route may say otherwise (failureMode).
        "failure_mode_allow": True,
        "status_on_error": {"code": "ServiceUnavailable"},
        "message_timeout": MESSAGE_TIMEOUT,
        # One message per request; the stream ends exactly when the response does, or the client leaves.
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": "NONE",
            "request_trailer_mode": "SKIP",
            "response_header_mode": "SKIP",
            "response_body_mode": "NONE",
            "response_trailer_mode": "SEND",
        },
        # All that a pick needs: prompts and keys stay in Envoy.
        "forward_rules": {
            "allowed_headers": {"patterns": [{"exact": "content-length"}, {"exact": "transfer-encoding"}]}
        },
        # Else the pick's metadata is dropped in silence.
        "metadata_options": {"receiving_namespaces": {"untyped": [wire.LB_NAMESPACE]}},
        "route_cache_action": "RETAIN",
    }


def _json_log() -> Resource:
    return {
        "name": "envoy.access_loggers.stdout",
        "typed_config": {
            "@type": TYPE + "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
            "log_format": {
                "json_format": {
                    "time": "%START_TIME%",
                    "method": "%REQ(:METHOD)%",
                    "path": "%PATH(NQ)%",
                    "protocol": "%PROTOCOL%",
                    "status": "%RESPONSE_CODE%",
                    "details": "%RESPONSE_CODE_DETAILS%",
                    "flags": "%RESPONSE_FLAGS%",
                    "duration_ms": "%DURATION%",
                    "first_byte_ms": "%RESPONSE_DURATION%",
                    "request_bytes": "%BYTES_RECEIVED%",
                    "response_bytes": "%BYTES_SENT%",
                    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
                    "picked": f"%DYNAMIC_METADATA({wire.LB_NAMESPACE}:{wire.DESTINATION})%",
                    "served": "%UPSTREAM_REMOTE_ADDRESS%",
                    "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
                    "request_id": "%REQ(X-REQUEST-ID)%",
                }
            },
        },
    }


def _grpc_log() -> Resource:
    return {
        "name": "envoy.access_loggers.http_grpc",
        "typed_config": {
            "@type": TYPE + "envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
            "common_config": {
                "log_name": INGRESS,
                "transport_api_version": "V3",
                "grpc_service": {"envoy_grpc": {"cluster_name": PICKER}},
                "buffer_flush_interval": ACCESS_LOG_FLUSH,
                # At the default of 16 kB Envoy drops entries when many requests end in the same moment.
                "buffer_size_bytes": ACCESS_LOG_BUFFER,
            },
        },
    }


def _local_replies() -> Resource:
    """Whatever Envoy answers itself is JSON in the error format of the OpenAI API, and says what is wrong."""
    return {
        "mappers": [
            {  # the picker's own refusal is written already
                "filter": _cel_filter("response.code_details.startsWith('halffull')"),
                "body_format_override": {
                    "text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"},
                    "content_type": "application/json",
                },
            },
            {  # failureMode FailClose; a hung picker would be 504
                **_reply_to(_cel_filter("response.code_details.startsWith('ext_proc')"), "The picker does not answer."),
                "status_code": 503,
            },
            _reply_to(_cel_filter("response.code_details == 'path_normalization_failed'"), UNREADABLE_PATH),
            _reply_to({"response_flag_filter": {"flags": ["UH"]}}, NO_ENGINE),
            _reply_to({"response_flag_filter": {"flags": ["UF"]}}, "The engine could not be reached. Try again."),
            _reply_to(
                {"response_flag_filter": {"flags": ["UC", "UR", "UPE"]}},
                "The engine broke off before it answered. Try again.",
            ),
            _reply_to(
                {"response_flag_filter": {"flags": ["UT", "SI"]}}, "The answer took longer than the gateway allows."
            ),
        ],
        "body_format": {
            "json_format": {
                "error": {"message": "%LOCAL_REPLY_BODY%", "type": "GatewayError", "code": "%RESPONSE_CODE%"}
            }
        },
    }


def _reply_to(reply_filter: Resource, message: str) -> Resource:
    return {"filter": reply_filter, "body": {"inline_string": message}}


def _cel_filter(expression: str) -> Resource:
    return {
        "extension_filter": {
            "name": "envoy.access_loggers.extension_filters.cel",
            "typed_config": {
                "@type": TYPE + "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter",
                "expression": expression,
            },
        }
    }


def _tls_socket() -> Resource:
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": TYPE + "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {
                "alpn_protocols": ["h2", "http/1.1"],
                "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
                # The certificate comes by SDS, so that it can change without the listener.
                "tls_certificate_sds_secret_configs": [{"name": INGRESS, "sds_config": ADS_SOURCE}],
            },
        },
    }
