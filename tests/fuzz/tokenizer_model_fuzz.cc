// tokenizer.model: SentencePiece's protobuf or lines of base64.
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/tokenizer_use.h"
#include "text/tokenizer/sentencepiece.h"
#include "text/tokenizer/tiktoken.h"

void jackscrew::parse_input(std::string_view bytes) {
  accepts([&] {
    use_tokenizer(is_tiktoken(bytes) ? parse_tiktoken(bytes, "tokenizer.model")
                                     : parse_sentencepiece(bytes, "tokenizer.model"));
  });
}
