#!/usr/bin/env python3
"""A Tidegate client written from docs/protocol.md alone, standard library only.

    python3 tests/python_client.py HOST:PORT     talk to a server, check answers
    python3 tests/python_client.py --vectors DIR  check the codec against the
                                                  golden vectors, no server

It proves that the page is enough. It leaves nothing behind on the server.
"""

import os
import re
import socket
import struct
import sys
import time

HEADER = struct.Struct("<4sBBHIIQ")  # magic version kind flags length reserved correlation
RECORD = struct.Struct("<IIIHHIQB3s")
FRAME_LIMIT = 16 * 1024 * 1024
NUMBERS = {"u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q"}

# Struct tables of the page. "[X]" is a list of X, "(X)" an X inside.
STRUCTS = {
    "Extension": "kind:u16 bytes:bytes",
    "Limits": "frame_bytes:u32 record_bytes:u32 name_bytes:u32 headers_bytes:u32 batch_records:u32",
    "PartitionPlace": "group:u32 node:u32 shard:u16",
    "QueueDescription": "queue_id:u64 name:text mode:u8 copies:u8 lease_ms:u64 partitions:[PartitionPlace]",
    "ConfirmItem": "correlation:u64 queue_id:u64 partition:u16 boundary:u8 copies:u8 generation:u32"
    " first_offset:u64 count:u32",
    "Delivery": "offset:u64 attempt:u32 flags:u32 len:u32",
    "SettleItem": "offset:u64 attempt:u32",
    "RefusedSettle": "offset:u64 attempt:u32 code:u16",
    "LossReport": "generation:u32 first_lost:u64 highest_known_confirmed_next:u64",
    "Hello": "version_min:u8 version_max:u8 wished_shard:u16 window_bytes:u32 client:text authentication:bytes",
    "HelloReply": "version:u8 node:u32 shard:u16 shards:u16 window_bytes:u32 limits:(Limits) server:text",
    "Declare": "name:text mode:u8 copies:u8 partitions:u16 lease_ms:u64",
    "Declared": "created:u8 queue:(QueueDescription)",
    "Publish": "queue_id:u64 partition:u16 flags:u32 deadline_ms:u32 producer_id:u64 producer_epoch:u32"
    " sequence:u64 trace:16 count:u32 records:bytes",
    "Confirm": "items:[ConfirmItem]",
    "Subscribe": "queue_id:u64 partition:u16 subscription:u32 credit_records:u32 credit_bytes:u64",
    "Subscribed": "subscription:u32 generation:u32",
    "Credit": "subscription:u32 records:u32 bytes:u64",
    "Deliver": "subscription:u32 queue_id:u64 partition:u16 generation:u32 deliveries:[Delivery] records:bytes",
    "Settle": "queue_id:u64 partition:u16 generation:u32 subscription:u32 kind:u8 flags:u32 delay_ms:u64"
    " items:[SettleItem]",
    "SettleConfirm": "accepted:u32 boundary:u8 copies:u8 refused:[RefusedSettle]",
    "Frontiers": "queue_id:u64 partition:u16",
    "FrontiersReply": "generation:u32 written_next:u64 durable_next:u64 copies:u8",
    "Barrier": "queue_id:u64 partition:u16 deadline_ms:u32",
    "BarrierReply": "generation:u32 written_next:u64 durable_next:u64 copies:u8",
    "Delete": "queue_id:u64",
    "Deleted": "queue_id:u64",
    "Ping": "",
    "Pong": "",
    "GoingAway": "reason:text",
    "Error": "code:u16 outcome:u8 message:text",
    "Locate": "name:text",
    "LocateReply": "queue:(QueueDescription)",
    "Unsubscribe": "subscription:u32",
    "Unsubscribed": "subscription:u32",
}
KINDS = {
    1: "Hello", 2: "HelloReply", 3: "Declare", 4: "Declared", 5: "Publish", 6: "Confirm",
    7: "Subscribe", 8: "Subscribed", 9: "Credit", 10: "Deliver", 11: "Settle",
    12: "SettleConfirm", 17: "Frontiers", 18: "FrontiersReply", 19: "Barrier",
    20: "BarrierReply", 25: "Delete", 26: "Deleted", 27: "Ping", 28: "Pong", 29: "GoingAway",
    30: "Error", 31: "Locate", 32: "LocateReply", 34: "Unsubscribe", 35: "Unsubscribed",
}  # fmt: skip
KIND_OF = {name: kind for kind, name in KINDS.items()}


def fields(name):
    """(field, type) pairs; the extension list ends every body."""
    pairs = [tuple(field.split(":")) for field in STRUCTS[name].split()]
    if name in KIND_OF:
        pairs.append(("extensions", "[Extension]"))
    return pairs


def size_of(kind):
    if kind in NUMBERS:
        return struct.calcsize(NUMBERS[kind])
    if kind in ("text", "bytes") or kind.startswith("["):
        return 8
    if kind == "16":
        return 16
    return sum(size_of(inner) for _, inner in fields(kind.strip("()")))


# --- bodies to bytes -------------------------------------------------------


def write_pointees(out, kind, value):
    """Appends what a value points to; returns what `fix` needs to finish it."""
    if kind in NUMBERS or kind == "16":
        return value
    if kind == "bytes":
        at = len(out)
        out += value
        return at, len(value)
    if kind == "text":
        data = value.encode()
        if len(data) <= 8:
            return data
        at = len(out)
        out += data
        return at, len(data)
    if kind.startswith("["):
        inner = kind.strip("[]")
        done = [write_pointees(out, inner, element) for element in value]
        at = len(out)
        for element in done:
            out += fix(len(out), inner, element)
        return at, len(value)
    name = kind.strip("()")
    empty = {"extensions": []}
    return [write_pointees(out, inner, {**empty, **value}[field]) for field, inner in fields(name)]


def fix(position, kind, done):
    """The fixed bytes of a value that will stand at `position`."""
    if kind in NUMBERS:
        return struct.pack(NUMBERS[kind], done)
    if kind == "16":
        return bytes(done)
    if kind == "text":
        if isinstance(done, bytes):
            return done.ljust(8, b"\xff")
        at, length = done
        number = (length & 0x3F) | 0x80 | ((length & 0xFFFFFFC0) << 2)
        return struct.pack("<Ii", number, at - position)
    if kind == "bytes" or kind.startswith("["):
        at, length = done
        return struct.pack("<iI", at - position, length)
    out = b""
    for (_, inner), value in zip(fields(kind.strip("()")), done):
        out += fix(position + len(out), inner, value)
    return out


def encode(name, correlation, /, **values):
    body = bytearray()
    done = write_pointees(body, name, values)
    body += fix(len(body), name, done)
    return HEADER.pack(b"TDGT", 1, KIND_OF[name], 0, len(body), 0, correlation) + bytes(body)


# --- bytes to bodies -------------------------------------------------------


def inside(body, at, length):
    if at < 0 or length < 0 or at + length > len(body):
        raise ValueError("an offset or length leaves the body")
    return body[at : at + length]


def read(body, at, kind):
    if kind in NUMBERS:
        return struct.unpack(NUMBERS[kind], inside(body, at, size_of(kind)))[0]
    if kind == "16":
        return inside(body, at, 16)
    if kind == "text":
        first = inside(body, at, 8)
        if first[0] & 0xC0 != 0x80:
            return first.split(b"\xff")[0].decode()
        number, offset = struct.unpack("<Ii", first)
        length = (number & 0x3F) | ((number & 0xFFFFFF00) >> 2)
        return inside(body, at + offset, length).decode()
    if kind == "bytes" or kind.startswith("["):
        offset, length = struct.unpack("<iI", inside(body, at, 8))
        if kind == "bytes":
            return inside(body, at + offset, length)
        inner = kind.strip("[]")
        step = size_of(inner)
        inside(body, at + offset, length * step)
        return [read(body, at + offset + index * step, inner) for index in range(length)]
    out = {}
    for field, inner in fields(kind.strip("()")):
        out[field] = read(body, at, inner)
        at += size_of(inner)
    return out


def decode(kind, body):
    name = KINDS[kind]
    out = read(body, len(body) - size_of(name), name)
    for extension in out["extensions"]:
        if extension["kind"] >= 0x8000:
            raise ValueError(f"unknown critical extension {extension['kind']:#x}")
    return out


# --- records ---------------------------------------------------------------


def make_crc_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


CRC_TABLE = make_crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def encode_record(payload, key=b"", headers=(), not_before_ms=0):
    head = b"".join(struct.pack("<HI", len(n), len(v)) + n + v for n, v in headers)
    rest = RECORD.pack(0, len(payload), len(head), len(key), 0, 0, not_before_ms, 0, b"\0\0\0")[4:]
    rest += key + head + payload
    return struct.pack("<I", crc32c(rest)) + rest


def decode_record(data):
    crc, payload_len, headers_len, key_len, *_ = RECORD.unpack_from(data)
    end = RECORD.size + key_len + headers_len + payload_len
    if end > len(data) or crc32c(data[4:end]) != crc:
        raise ValueError("a record is cut or its checksum is wrong")
    headers_at = RECORD.size + key_len
    key = data[RECORD.size : headers_at]
    headers = data[headers_at : headers_at + headers_len]
    return key, headers, data[headers_at + headers_len : end], end


def decode_records(data):
    out = []
    while data:
        key, headers, payload, end = decode_record(data)
        out.append((key, headers, payload))
        data = data[end:]
    return out


# --- a connection ----------------------------------------------------------


class Refused(Exception):
    def __init__(self, error):
        super().__init__(error["message"])
        self.code = error["code"]
        self.outcome = error["outcome"]


class Client:
    def __init__(self, address, timeout_s=30):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
        self.correlation = 0
        self.deliveries = []
        self.hello = self.ask(
            "Hello", version_min=1, version_max=1, wished_shard=65535, window_bytes=1 << 20,
            client="python_client/1", authentication=b"",
        )  # fmt: skip

    def close(self):
        self.socket.close()

    def receive(self, length):
        data = bytearray()
        while len(data) < length:
            piece = self.socket.recv(length - len(data))
            if not piece:
                raise ConnectionError("the server closed the connection")
            data += piece
        return bytes(data)

    def next_frame(self):
        header = HEADER.unpack(self.receive(HEADER.size))
        magic, version, kind, flags, length, reserved, correlation = header
        if magic != b"TDGT" or version != 1 or flags or reserved or length > FRAME_LIMIT:
            raise ValueError(f"a bad frame header: {header}")
        body = self.receive(length)
        if kind not in KINDS:
            return None, correlation, None
        return KINDS[kind], correlation, decode(kind, body)

    def send(self, name, /, **values):
        self.correlation += 1
        self.socket.sendall(encode(name, self.correlation, **values))
        return self.correlation

    def ask(self, name, /, **values):
        """Sends a request and waits for its answer; deliveries met are kept."""
        asked = self.send(name, **values)
        while True:
            kind, correlation, body = self.next_frame()
            if kind == "Deliver":
                self.take(body)
            elif kind == "Confirm":
                for item in body["items"]:
                    if item["correlation"] == asked:
                        return item
            elif kind == "Error" and correlation in (asked, 0):
                raise Refused(body)
            elif correlation == asked:
                return body

    def take(self, body):
        records = decode_records(body["records"])
        assert len(records) == len(body["deliveries"]), "one record per delivery"
        for delivery, record in zip(body["deliveries"], records):
            self.deliveries.append((body["generation"], delivery, record))

    def wait_deliveries(self, count):
        while len(self.deliveries) < count:
            kind, _, body = self.next_frame()
            if kind == "Deliver":
                self.take(body)
            elif kind == "Error":
                raise Refused(body)
        taken, self.deliveries = self.deliveries[:count], self.deliveries[count:]
        return taken


# --- what it checks --------------------------------------------------------

STEPS = 0


def step(text, condition):
    global STEPS
    if not condition:
        raise AssertionError(text)
    STEPS += 1
    print(f"ok {STEPS}: {text}")


def talk(address):
    client = Client(address)
    step("hello is answered in version 1", client.hello["version"] == 1)
    step("the limits are those of the page", client.hello["limits"]["frame_bytes"] == FRAME_LIMIT)
    client.ask("Ping")
    step("ping is answered", True)

    name = f"python-{os.getpid()}-{time.time_ns()}"
    try:
        client.ask("Locate", name=name)
        step("a queue that does not exist is not found", False)
    except Refused as refused:
        step("a queue that does not exist is not found", refused.code == 6)
    values = dict(name=name, mode=1, copies=0, partitions=0, lease_ms=0)
    declared = client.ask("Declare", **values)
    step("declare creates the queue", declared["created"] == 1)
    step("the queue has its name", declared["queue"]["name"] == name)
    step("a second declare finds it", client.ask("Declare", **values)["created"] == 0)
    place = dict(queue_id=declared["queue"]["queue_id"], partition=0)

    try:
        check_records(client, place)
    finally:
        client.ask("Delete", queue_id=place["queue_id"])
    step("delete is answered", True)
    client.close()


def check_records(client, place):
    records = [
        encode_record(b"first", key=b"k", headers=[(b"name", b"value")]),
        encode_record(b""),
        encode_record("third, ünïcode".encode()),
    ]
    confirm = client.ask(
        "Publish", **place, flags=0, deadline_ms=0, producer_id=0, producer_epoch=0, sequence=0,
        trace=bytes(16), count=len(records), records=b"".join(records),
    )  # fmt: skip
    step("the confirm counts the batch", confirm["count"] == 3)
    step("a durable queue confirms at durable", confirm["boundary"] == 2)
    first = confirm["first_offset"]

    subscribed = client.ask("Subscribe", **place, subscription=7, credit_records=2, credit_bytes=1 << 20)
    step("subscribe is answered", subscribed["subscription"] == 7)
    got = client.wait_deliveries(2)
    step("records arrive in order", [d["offset"] for _, d, _ in got] == [first, first + 1])
    step("key, headers and payload arrive unchanged",
         got[0][2] == (b"k", b"\x04\x00\x05\x00\x00\x00namevalue", b"first"))  # fmt: skip
    step("an empty record arrives", got[1][2] == (b"", b"", b""))
    step("the generation is the confirm's", got[0][0] == confirm["generation"])
    client.ask("Ping")
    step("without credit nothing more arrives", not client.deliveries)
    step("a settle is confirmed", settle(client, place, got, 1) == (2, 2, 0))
    step("settling again is refused", settle(client, place, got[:1], 1) == (0, 0, 1))

    client.send("Credit", subscription=7, records=2, bytes=1 << 20)
    got = client.wait_deliveries(1)
    step("credit brings the next record", got[0][2][2] == "third, ünïcode".encode())
    step("a release is confirmed", settle(client, place, got, 2) == (1, 2, 0))
    got = client.wait_deliveries(1)
    step("a released record comes again", got[0][1]["offset"] == first + 2)
    step("as the second attempt, flagged", got[0][1]["attempt"] == 2 and got[0][1]["flags"] & 1 == 1)
    step("it is settled", settle(client, place, got, 1) == (1, 2, 0))

    frontiers = client.ask("Frontiers", **place)
    step("frontiers are above the records", frontiers["written_next"] >= first + 3)
    barrier = client.ask("Barrier", **place, deadline_ms=10_000)
    step("a barrier is met", barrier["durable_next"] >= first + 3)
    client.ask("Unsubscribe", subscription=7)
    step("unsubscribe is answered", True)


def settle(client, place, got, kind):
    """(accepted, boundary, refused) of one settle with confirm."""
    items = [dict(offset=d["offset"], attempt=d["attempt"]) for _, d, _ in got]
    answer = client.ask(
        "Settle", **place, generation=got[0][0], subscription=7, kind=kind, flags=1, delay_ms=0,
        items=items,
    )  # fmt: skip
    return answer["accepted"], answer["boundary"], len(answer["refused"])


def check_vectors(directory):
    step("CRC-32C of the page's example", crc32c(b"123456789") == 0xE3069283)
    for file in sorted(os.listdir(directory)):
        with open(os.path.join(directory, file), encoding="utf-8") as lines:
            comment, *rows = lines.read().splitlines()
        data = bytes.fromhex(" ".join(rows))
        if file.startswith("record"):
            _, _, _, end = decode_record(data)
            step(f"{file} decodes", end == len(data))
            continue
        *_, kind, _, length, _, correlation = HEADER.unpack(data[: HEADER.size])
        if kind not in KINDS:
            continue
        name, body = KINDS[kind], data[HEADER.size :]
        values = decode(kind, body)
        for field, inner in fields(name):
            if inner in NUMBERS:
                assert f" {field}: {values[field]}," in comment, f"{file}: {field}"
            if inner == "text":
                assert f' {field}: "{values[field]}",' in comment, f"{file}: {field}"
        same = len(body) == length and encode(name, correlation, **values) == data
        step(f"{file} decodes and encodes to the same bytes", same)
    step("every kind this client speaks has a vector", STEPS == len(KINDS) + 3)


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "--vectors":
        check_vectors(arguments[1])
    elif len(arguments) == 1 and re.fullmatch(r".+:\d+", arguments[0]):
        talk(arguments[0])
    else:
        print(__doc__, file=sys.stderr)
        return 2
    print(f"{STEPS} passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
