// Mixtures of types in GGUF files: those that llama.cpp's own quantiser makes, matrix by matrix.
#include "quant/gguf_mixtures.h"

#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "base/file.h"
#include "conversion/planned_source.h"
#include "conversion/write_model.h"
#include "formats/gguf_names.h"
#include "model/weights.h"
#include "quant/plain.h"
#include "tests/support/paths.h"

namespace jackscrew {
namespace {

// "32 8 2 256 512 untied": layers, heads, key/value heads, hidden and feed-forward size.
ModelFiles files_of_shape(const std::string& shape) {
  ModelFiles files;
  ModelConfig& config = files.config;
  std::istringstream in(shape);
  std::string tied;
  in >> config.num_hidden_layers >> config.num_attention_heads >> config.num_key_value_heads >>
      config.hidden_size >> config.intermediate_size >> tied;
  config.vocab_size = 32;
  config.head_dim = config.hidden_size / config.num_attention_heads;
  config.tie_word_embeddings = tied == "tied";
  auto source = std::make_shared<PlannedSource>();
  for (const WeightSpec& weight : weights_of(config, StageSpec::whole(config))) {
    source->add_stored(weight, unowned(f16_format()));
  }
  files.source = std::move(source);
  return files;
}

// By the tensor's name, without its block, the types in the order of blocks: "q6_k*4 q4_k".
std::map<std::string, std::string> types_of(const ModelFiles& files, const std::string& mixture) {
  std::vector<std::string> notes;
  std::map<std::string, std::vector<std::string>> types;
  const StorageChoice choice{ModelFormat::gguf, mixture, files.source.get()};
  for (const ModelTensor& tensor : tensors_to_write(files, choice, notes)) {
    if (tensor.spec.is_vector()) continue;
    std::string name = gguf_name(tensor.spec);
    name.resize(name.rfind('.'));
    types[name.substr(name.rfind('.') + 1)].push_back(tensor.format->name());
  }
  std::map<std::string, std::string> out;
  for (const auto& [name, list] : types) {
    std::string& text = out[name];
    for (size_t i = 0, same = 0; i < list.size(); i += same) {
      for (same = 1; i + same < list.size() && list[i + same] == list[i];) ++same;
      if (!text.empty()) text += " ";
      text += same == 1 ? list[i] : fmt::format("{}*{}", list[i], same);
    }
  }
  return out;
}

// Where rows are interleaved, a panel is whole heads.
TEST(WritingMemory, HasRoomForWholeHeads) {
  const ModelFiles files = files_of_shape("1 4 4 8192 64 untied");
  std::vector<std::string> notes;
  const auto mebibytes = [&](ModelFormat format) {
    const StorageChoice choice{format, "f16", files.source.get()};
    return writing_memory(files, tensors_to_write(files, choice, notes), format) >> 20;
  };
  // 128 rows as they are stored, in f32 and as they are written; in GGUF 2048 of the last two.
  EXPECT_EQ(mebibytes(ModelFormat::hf), 2 + 4 + 2);
  EXPECT_EQ(mebibytes(ModelFormat::gguf), 2 + 64 + 32);
}

TEST(GgufMixtures, AreThoseOfLlamaCpp) {
  // Written by tools/gguf_mixtures.py: shape, mixture, tensor, types.
  std::istringstream lines(
      read_text(std::string(kTestData) + "/conversion/data/gguf_mixtures.txt"));
  std::map<std::string, int> seen;
  for (std::string line; std::getline(lines, line);) {
    size_t end = 0;
    for (int words = 0; words < 6; ++words) end = line.find(' ', end) + 1;
    const std::string shape = line.substr(0, end - 1);
    std::istringstream rest(line.substr(end));
    std::string mixture, tensor, types;
    rest >> mixture >> tensor >> std::ws;
    std::getline(rest, types);
    EXPECT_EQ(types_of(files_of_shape(shape), mixture).at(tensor), types)
        << mixture << " of " << shape << ": " << tensor;
    ++seen[mixture];
  }
  ASSERT_EQ(seen.size(), gguf_mixtures().size());
  for (const GgufMixture& mixture : gguf_mixtures()) {
    EXPECT_GT(seen[std::string(mixture.name)], 50) << mixture.name;
    EXPECT_EQ(gguf_file_type_name(gguf_file_type_of(mixture.name).value_or(0)), mixture.name);
  }
}

TEST(GgufMixtures, FilesOfOtherTypesHaveNamesToo) {
  EXPECT_EQ(gguf_file_type_name(7), "q8_0");
  EXPECT_EQ(gguf_file_type_name(4), "file type 4");  // that llama.cpp has retired
  EXPECT_EQ(gguf_file_type_of("q8_0"), 7u);
  EXPECT_EQ(gguf_file_type_of("q4_k"), 15u);
  EXPECT_EQ(gguf_file_type_of("f32"), 0u);
  EXPECT_EQ(gguf_file_type_of("nf4"), std::nullopt);
}

}  // namespace
}  // namespace jackscrew
