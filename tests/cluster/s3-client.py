#!/usr/bin/python3
"""What is in the object store of a test, by a client that has nothing of tarn's: what tests compare with.

    tests/cluster/s3-client.py URL bucket NAME | put BUCKET KEY TEXT... | fill BUCKET KEY BYTES | get BUCKET KEY | sum BUCKET KEY
                                   | keys BUCKET [PREFIX] | uploads BUCKET [PREFIX]

`fill` puts numbered lines, `sum` prints the MD5 of what is there, `keys` a key a line, `uploads` a line for each upload that has not
ended: its key, and how many parts it has.
"""

import datetime
import hashlib
import hmac
import http.client
import sys
import time
import xml.etree.ElementTree
from urllib.parse import quote, urlparse

KEY, SECRET, REGION = "test:tester", "testing", "us-east-1"
BLOCK = 1 << 20
TRIES = 30


def signature(secret, *words):
    """Each word hashed with the result of the one before."""
    key = b"AWS4" + secret.encode()
    for word in words:
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    return key.hex()


def send_request(place, method, path, query=None, body=None):
    """An answer, which must be no refusal. A request to a busy store is repeated."""
    for _ in range(TRIES):
        answer = answered(place, method, path, query, body)
        if answer.status != 503:
            break
        time.sleep(1)
    if answer.status >= 300:
        sys.exit(f"{method} {path}: {answer.status} {answer.read().decode(errors='replace')}")
    return answer


def answered(place, method, path, query, body):
    """An answer to a request that is signed as Amazon's documents say (version 4)."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    path = quote(path)
    query = "&".join(f"{quote(k, safe='')}={quote(v, safe='')}" for k, v in sorted((query or {}).items()))
    headers = {"host": place, "x-amz-content-sha256": "UNSIGNED-PAYLOAD", "x-amz-date": now}
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = "\n".join([method, path, query, lines, names, "UNSIGNED-PAYLOAD"])
    scope = f"{now[:8]}/{REGION}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(request.encode()).hexdigest()])
    signed = signature(SECRET, *scope.split("/"), text)
    headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={KEY}/{scope},SignedHeaders={names},Signature={signed}"
    connection = http.client.HTTPConnection(place, timeout=60)
    connection.request(method, f"{path}?{query}" if query else path, body=body, headers=headers)
    return connection.getresponse()


def listed(place, path, query, kind, name):
    """The named texts of all elements of a kind, of one page."""
    tree = xml.etree.ElementTree.fromstring(send_request(place, "GET", path, query).read())
    return [tuple(found.findtext(f"{{*}}{n}") for n in name) for found in tree.findall(f"{{*}}{kind}")]


def content(size):
    """Lines with their numbers."""
    return b"".join(b"%015d\n" % line for line in range(size // 16 + 1))[:size]


def main():
    place, verb, words = urlparse(sys.argv[1]).netloc, sys.argv[2], sys.argv[3:]
    path = "/" + "/".join(words[:2])
    bucket, prefix = "/" + words[0], words[1] if len(words) > 1 else ""
    if verb == "bucket":
        send_request(place, "PUT", bucket)
    elif verb == "put":
        for key, text in zip(words[1::2], words[2::2]):
            send_request(place, "PUT", f"{bucket}/{key}", body=text.encode())
    elif verb == "fill":
        send_request(place, "PUT", path, body=content(int(words[2])))
    elif verb == "get":
        sys.stdout.buffer.write(send_request(place, "GET", path).read())
    elif verb == "sum":
        answer, sums = send_request(place, "GET", path), hashlib.md5()
        while block := answer.read(BLOCK):
            sums.update(block)
        print(sums.hexdigest())
    elif verb == "keys":
        for (key,) in listed(place, bucket, {"list-type": "2", "prefix": prefix}, "Contents", ["Key"]):
            print(key)
    elif verb == "uploads":
        for key, upload in listed(place, bucket, {"uploads": "", "prefix": prefix}, "Upload", ["Key", "UploadId"]):
            print(key, len(listed(place, f"{bucket}/{key}", {"uploadId": upload}, "Part", ["ETag"])))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
