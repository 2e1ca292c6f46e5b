/**
 * How a connection to the service is set up: transport options, retries, TLS.
 *
 * Owns every channel option and the reason for it. Knows nothing of calls.
 */
import { credentials, type ChannelCredentials, type ChannelOptions } from "@grpc/grpc-js";

import { VERSION } from "./version.js";

/** TLS towards the service; PEM texts or bytes, all of them optional. */
export interface TlsOptions {
  /** Roots to trust; Node's own if left out. */
  readonly ca?: string | Uint8Array;
  /** Client certificate (mutual TLS), with its chain. Takes `key` as well. */
  readonly cert?: string | Uint8Array;
  readonly key?: string | Uint8Array;
  /** The name to verify, where it is not the one in the target. */
  readonly serverName?: string;
}

const MAX_MESSAGE_BYTES = 64 * 1024 * 1024;

// gRPC repeats a call only while nothing has come back: the service sends no initial metadata before its first event, so
// the whole waiting line is covered. The policy of docs/retries.md, the same in every client.
export const SERVICE_CONFIG = {
  methodConfig: [
    {
      name: ["GenerationService", "ModelService", "TokenizeService"].map((name) => ({ service: `headrace.v1.${name}` })),
      retryPolicy: {
        maxAttempts: 3,
        initialBackoff: "0.2s",
        maxBackoff: "2.0s",
        backoffMultiplier: 2,
        retryableStatusCodes: ["UNAVAILABLE", "CANCELLED"],
      },
    },
  ],
  // While most calls fail, none is repeated: each failure costs a token, each success earns a tenth.
  retryThrottling: { maxTokens: 10, tokenRatio: 0.1 },
  // A target with several addresses (dns:///headless-service:50051) uses them all.
  loadBalancingConfig: [{ round_robin: {} }],
};

const DEFAULT_OPTIONS: ChannelOptions = {
  "grpc.service_config": JSON.stringify(SERVICE_CONFIG),
  // A config in the target's DNS would be asked for first, with a query for each new connection.
  "grpc.service_config_disable_resolution": 1,
  // A request larger than this is never retried; the library's default of 1 MiB is a long chat with tools.
  "grpc.per_rpc_retry_buffer_size": 4 * 1024 * 1024,
  // The library's defaults are 4 MiB in and no limit out.
  "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
  "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
  // A gRPC server with default settings answers more than two pings within 5 minutes of silence with GOAWAY
  // too_many_pings, which kills a call that waits for a slot.
  "grpc.keepalive_time_ms": 310_000,
  "grpc.keepalive_timeout_ms": 20_000,
  // The library waits up to two minutes before it tries a server again that was gone.
  "grpc.initial_reconnect_backoff_ms": 200,
  "grpc.max_reconnect_backoff_ms": 3_000,
  "grpc.primary_user_agent": `headrace-typescript/${VERSION}`,
};

/** What differs between clients, in the words of `ClientOptions`. */
export interface ChannelSettings {
  readonly tls?: boolean | TlsOptions;
  readonly retries?: boolean;
  readonly keepaliveMs?: number;
  readonly channelOptions?: ChannelOptions;
}

/** Return the options of a channel; what the caller gives wins over the defaults. */
export function channelOptions(settings: ChannelSettings): ChannelOptions {
  const options = { ...DEFAULT_OPTIONS };
  if (settings.retries === false) options["grpc.enable_retries"] = 0;
  if (settings.keepaliveMs !== undefined) options["grpc.keepalive_time_ms"] = settings.keepaliveMs;
  if (typeof settings.tls === "object" && settings.tls.serverName !== undefined) {
    options["grpc.ssl_target_name_override"] = settings.tls.serverName;
    options["grpc.default_authority"] = settings.tls.serverName;
  }
  return { ...options, ...settings.channelOptions };
}

/** Return the credentials of a channel. Throws TypeError for half a client certificate. */
export function channelCredentials(tls: boolean | TlsOptions | undefined): ChannelCredentials {
  if (tls === undefined || tls === false) return credentials.createInsecure();
  const { ca, cert, key } = tls === true ? {} : tls;
  if ((cert === undefined) !== (key === undefined)) throw new TypeError("a client certificate needs both cert and key");
  return credentials.createSsl(pem(ca), pem(key), pem(cert));
}

function pem(text: string | Uint8Array | undefined): Buffer | null {
  return text === undefined ? null : Buffer.from(text);
}
