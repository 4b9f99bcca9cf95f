// .csv: as rows, and as records.
#include "data/csv.h"

#include "tests/fuzz/fuzz.h"
#include "tests/support/read_records.h"

void jackscrew::parse_input(std::string_view bytes) {
  accepts([&] {
    CsvReader reader(bytes, "train.csv", size_t{1} << 20);
    for (std::vector<std::string> fields; reader.next(fields);) {
    }
  });
  const fs::path path = write_file("train.csv", bytes);
  accepts([&] {
    read_records({&path, 1}, 0, [](const Record&, const std::string&) { return true; });
  });
}
