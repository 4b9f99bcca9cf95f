// model.safetensors, with weights in NF4 among them.
#include "formats/safetensors.h"
#include "tests/fuzz/fuzz.h"

void jackscrew::parse_input(std::string_view bytes) {
  write_file("model.safetensors", bytes);
  accepts([] {
    const SafetensorsSource source(directory());
    for (const std::string& name : source.names()) {
      accepts([&] { source.release(*source.find(name)); });
    }
  });
}
