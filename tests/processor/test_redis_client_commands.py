from freshet_serving.processor.redis_client import encode_command


def test_words_keep_their_bytes_and_lengths():
    assert encode_command([b"GET", b"", b"a\r\n"]) == b"*3\r\n$3\r\nGET\r\n$0\r\n\r\n$3\r\na\r\n\r\n"
