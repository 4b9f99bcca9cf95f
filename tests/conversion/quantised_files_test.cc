// What quantize writes beside the matrices that it rounds.
#include "conversion/quantised_files.h"

#include "conversion/gptq_rounder.h"
#include "tests/conversion/conversion.h"
#include "tests/support/golden.h"

namespace jackscrew {
namespace {

// The files may be others, or none, when all matrices are rounded.
TEST_F(SlowConversion, RoundedModelsHaveTheTextsThatWereRead) {
  const std::string chat = tiny_.file("my.jinja", "{{ messages[0]['content'] }}");
  const Recipe recipe =
      make_recipe({"tokenizer=bytes", "group_size=32", "chat_template=" + chat, "threads=2"});
  const ModelFiles files = open_model(path("base"));
  const CalibrationSize text{8, 64};
  const auto rounder = make_gptq_rounder(recipe);
  const auto coded = [&](const WeightSpec& weight) {
    std::vector<TensorBytes> parts;
    for (const SafetensorsSpec& spec : rounder->specs(weight)) {
      parts.push_back({spec, std::vector<uint8_t>(static_cast<size_t>(bytes_of({spec})))});
    }
    return parts;
  };
  const auto nearest = [](const WeightSpec&) { return std::vector<TensorBytes>(); };
  const auto layout = make_layout_files(recipe, files, "f16", *rounder, text);
  const auto directory =
      make_converted_files(recipe, files, {ModelFormat::hf, "nf4", files.source.get()});
  const auto gguf =
      make_converted_files(recipe, files, {ModelFormat::gguf, "q8_0", files.source.get()});
  const auto write = [&](const std::string& to) {
    for (const char* name : {"layout", "directory"}) fs::create_directories(path(to) + "/" + name);
    const ProgressStyle style{.quiet = true};
    layout->write(path(to) + "/layout", text, coded, style);
    directory->write(path(to) + "/directory", text, nearest, style);
    gguf->write(path(to) + "/model.gguf", text, nearest, style);
    return contents(path(to));
  };
  const auto first = write("first");
  for (const char* name :
       {"layout/chat_template.jinja", "directory/chat_template.jinja", "model.gguf"}) {
    EXPECT_NE(first.at(name).find(read_text(chat)), std::string::npos) << name;
  }
  fs::remove(chat);
  EXPECT_TRUE(write("second") == first);
}

}  // namespace
}  // namespace jackscrew
