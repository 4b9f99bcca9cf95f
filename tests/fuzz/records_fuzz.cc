// .jsonl and .json: the same bytes as either.
#include "tests/fuzz/fuzz.h"
#include "tests/support/read_records.h"

void jackscrew::parse_input(std::string_view bytes) {
  for (const char* name : {"train.jsonl", "train.json"}) {
    const fs::path path = write_file(name, bytes);
    accepts([&] {
      read_records({&path, 1}, 0, [](const Record&, const std::string&) { return true; });
    });
  }
}
