/** What goes with a call as gRPC metadata: credentials, what the caller adds, trace context. */
import { Metadata } from "@grpc/grpc-js";

/** Names and values of metadata: printable ASCII; bytes for names that end in "-bin". */
export type CallMetadata = Readonly<Record<string, string | Uint8Array>>;

// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, Header-Name and ASCII-Value
const KEY = /^[0-9a-z_.-]+$/;
const VALUE = /^[\x20-\x7e]*$/;

/** Return grpc-js's form of metadata; of a name that comes twice the last one counts. Throws TypeError for what gRPC does not take. */
export function toMetadata(...sources: readonly CallMetadata[]): Metadata {
  const metadata = new Metadata();
  for (const source of sources) {
    for (const [name, value] of Object.entries(source)) {
      const key = name.toLowerCase();
      if (!KEY.test(key)) throw new TypeError(`metadata ${JSON.stringify(key)}: letters, digits, and _ . - are possible`);
      if (key.endsWith("-bin")) metadata.set(key, Buffer.from(value));
      // The value stays out of the message: it may be a secret, which is why grpc-js is not left to say so.
      else if (typeof value === "string" && VALUE.test(value)) metadata.set(key, value);
      else throw new TypeError(`metadata ${JSON.stringify(key)}: its value has to be text of printable ASCII characters`);
    }
  }
  return metadata;
}

/** Return the texts of metadata by name, the first of each. */
export function toRecord(metadata: Metadata): Record<string, string> {
  const texts = Object.entries(metadata.getMap()).filter((entry): entry is [string, string] => typeof entry[1] === "string");
  return Object.fromEntries(texts);
}
