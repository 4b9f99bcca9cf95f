#include "conversion/quantised_files.h"

#include <nlohmann/json.hpp>

#include "conversion/result_texts.h"
#include "conversion/write_model.h"
#include "formats/hf_config.h"
#include "formats/safetensors.h"
#include "model/weights.h"

namespace jackscrew {

namespace {

class LayoutFiles : public QuantisedFiles {
 public:
  LayoutFiles(const Recipe& recipe, const ModelFiles& files, const std::string& rest,
              const LayoutRounder& rounder, const CalibrationSize& text)
      : recipe_(recipe), files_(files), rounder_(rounder) {
    std::vector<std::string> ignored;  // about weights that will be rounded
    tensors_ = tensors_to_write(files, {ModelFormat::hf, rest, files.source.get()}, ignored);
    const WeightSpec head = head_of(files.config);
    rounds_head_ = rounder.rounds(head);
    if (rounds_head_ && files.config.tie_word_embeddings) tensors_.push_back({head, nullptr});
    for (auto& [weight, format] : tensors_) {
      if (rounder.rounds(weight)) format = nullptr;
    }
    WeightTypes types;
    for (const ModelTensor& tensor : tensors_) {
      if (tensor.format == nullptr) continue;
      types.add(safetensors_dtype(*tensor.format), tensor.spec.is_block_matrix());
    }
    texts_ = directory_texts(recipe, files, torch_dtype(types), notes_);
    text_bytes_ = bytes_of(texts(text));
  }

  const std::vector<ModelTensor>& tensors() const override { return tensors_; }
  const std::vector<std::string>& notes() const override { return notes_; }
  FileSizes sizes() const override {
    FileSizes sizes = QuantisedModelWriter::sizes(tensors_, specs(), recipe_.max_shard_bytes);
    sizes.all = checked_add(sizes.all, text_bytes_);
    return sizes;
  }

  void write(const fs::path& path, const CalibrationSize& text, const RoundedMatrices& rounded,
             const ProgressStyle& style) const override {
    write_texts(texts(text), path);
    QuantisedModelWriter writer(path, tensors_, specs(), recipe_.max_shard_bytes);
    WeightWriter plain(recipe_, files_, writer);
    for (const ModelTensor& tensor : tensors_) {
      if (style.check) style.check();
      if (tensor.format != nullptr) {
        plain.write(tensor);
      } else {
        writer.write_coded(rounded(tensor.spec));
      }
    }
    writer.close();
  }

 private:
  CodedSpecs specs() const {
    return [this](const WeightSpec& weight) { return rounder_.specs(weight); };
  }

  // With the rounder's settings as they are by now.
  Texts texts(const CalibrationSize& text) const {
    Texts texts = texts_;
    std::string& config = texts["config.json"];
    config = add_quantization_config(config, rounder_.config(text.sequences, text.sequence_len));
    // The head has become a matrix of its own.
    if (rounds_head_) config = set_untied(config);
    return texts;
  }

  const Recipe& recipe_;
  const ModelFiles& files_;
  const LayoutRounder& rounder_;
  std::vector<ModelTensor> tensors_;
  bool rounds_head_ = false;
  // Of the beginning: their files may be others when the matrices are rounded.
  Texts texts_;
  int64_t text_bytes_ = 0;
  std::vector<std::string> notes_;
};

class ConvertedFiles : public QuantisedFiles {
 public:
  ConvertedFiles(const Recipe& recipe, const ModelFiles& files, const StorageChoice& choice)
      : recipe_(recipe), files_(files), choice_(choice), planned_(recipe, files, choice) {}

  const std::vector<ModelTensor>& tensors() const override { return planned_.tensors(); }
  const std::vector<std::string>& notes() const override { return planned_.report().notes; }
  FileSizes sizes() const override { return planned_.sizes(); }

  void write(const fs::path& path, const CalibrationSize&, const RoundedMatrices& rounded,
             const ProgressStyle& style) const override {
    std::vector<std::string> told;                                 // notes() has them
    const auto tensors = tensors_to_write(files_, choice_, told);  // in the formats chosen by now
    const auto writer = planned_.begin(recipe_, path, tensors);
    WeightWriter weights(recipe_, files_, *writer);
    for (const ModelTensor& tensor : tensors) {
      if (style.check) style.check();
      const std::vector<TensorBytes> parts = rounded(tensor.spec);
      if (parts.empty()) {
        weights.write(tensor);
      } else {
        weights.write_encoded(tensor, parts[0].bytes);
      }
    }
    writer->close();
  }

 private:
  const Recipe& recipe_;
  const ModelFiles& files_;
  StorageChoice choice_;
  Conversion planned_;
};

}  // namespace

std::unique_ptr<QuantisedFiles> make_layout_files(const Recipe& recipe, const ModelFiles& files,
                                                  const std::string& rest,
                                                  const LayoutRounder& rounder,
                                                  const CalibrationSize& text) {
  return std::make_unique<LayoutFiles>(recipe, files, rest, rounder, text);
}

std::unique_ptr<QuantisedFiles> make_converted_files(const Recipe& recipe, const ModelFiles& files,
                                                     const StorageChoice& choice) {
  return std::make_unique<ConvertedFiles>(recipe, files, choice);
}

}  // namespace jackscrew
