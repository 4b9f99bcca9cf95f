// One layer in each quantised layout (tools/golden_quantised.py), and copies with something
// changed.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "formats/quantised_layout.h"
#include "quant/weight.h"
#include "tests/formats/support.h"
#include "tests/support/paths.h"
#include "tests/support/test_ops.h"

namespace jackscrew {

inline std::vector<float> values_of(const StoredTensor& tensor, Ops& ops) {
  const int64_t rows = tensor.shape[0];
  const int64_t cols = tensor.shape[1];
  Memory memory("host", make_host_backing(), 0);
  Arena staging(memory, Purpose::staging, 1 << 20);
  Weight weight(memory, {"a.weight", rows, cols}, tensor.format);
  weight.load(ops, tensor, staging);
  std::vector<float> out(static_cast<size_t>(rows * cols));
  weight.decode(ops, 0, rows, Tensor(out.data(), DType::f32, {rows, cols}));
  return out;
}

class QuantisedLayoutTest : public FormatsTest {
 protected:
  struct Entry {
    SafetensorsSpec spec;
    std::vector<uint8_t> bytes;
  };

  static fs::path golden(const std::string& name) {
    return fs::path(kTestData) / "golden/quantised" / name;
  }

  static std::vector<Entry> entries(const std::string& name) {
    const SafetensorsFile file(golden(name) / "model.safetensors");
    std::vector<Entry> out;
    for (const SafetensorsEntry& entry : file.entries()) {
      out.push_back(
          {{entry.name, entry.dtype, entry.shape}, {entry.bytes.begin(), entry.bytes.end()}});
    }
    return out;
  }

  static Entry& part(std::vector<Entry>& all, const std::string& suffix) {
    for (Entry& entry : all) {
      if (entry.spec.name == "a." + suffix) return entry;
    }
    ADD_FAILURE() << suffix;
    return all[0];
  }

  template <class Element>
  static void set(Entry& entry, size_t index, Element value) {
    std::memcpy(entry.bytes.data() + index * sizeof value, &value, sizeof value);
  }

  void write(const std::vector<Entry>& all) const {
    std::vector<SafetensorsSpec> specs;
    for (const Entry& entry : all) specs.push_back(entry.spec);
    SafetensorsWriter writer(directory_ / "model.safetensors", specs);
    for (const Entry& entry : all) writer.write(entry.spec.name, entry.bytes);
    writer.close();
  }

  // Why the weight of a changed file cannot be had.
  template <class Change>
  std::string refused(const std::string& name, const Change& change) const {
    std::vector<Entry> all = entries(name);
    change(all);
    write(all);
    put("config.json", slurp(golden(name) / "config.json"));
    return load_error();
  }

  // Why the weight cannot be had with a changed quantization_config.
  std::string refused_config(const std::string& name, const std::string& from,
                             const std::string& to) const {
    change_config(name, from, to);
    return load_error();
  }
  void change_config(const std::string& name, const std::string& from,
                     const std::string& to) const {
    write(entries(name));
    std::string text = slurp(golden(name) / "config.json");
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    put("config.json", text.replace(at, from.size(), to));
  }
  std::vector<float> loaded() const {
    const SafetensorsSource source(directory_);
    return values_of(*source.find("a.weight"), *make_test_ops());
  }

  std::string load_error() const {
    return model_error([&] {
      const SafetensorsSource source(directory_);
      values_of(*source.find("a.weight"), *make_test_ops());
    });
  }
};

}  // namespace jackscrew
