// quantize that is stopped, and goes on.
#include <algorithm>
#include <random>
#include <regex>

#include "conversion/model_output.h"
#include "conversion/quantise_checkpoint.h"
#include "formats/json_text.h"
#include "tests/conversion/quantise_rig.h"
#include "tests/support/errors.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

using nlohmann::json;

class SlowQuantiseResume : public QuantiseRig, public ::testing::WithParamInterface<const char*> {
 protected:
  static constexpr int64_t kBlocks = 6;

  SlowQuantiseResume() : QuantiseRig("quantise_resume", GetParam()) {
    train_base("max_steps=1 model=" + tiny_.file("deep.json", R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 260,
      "hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 6,
      "num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": 128,
      "tie_word_embeddings": true, "bos_token_id": 256, "eos_token_id": 257})"));
    answer(quantise("whole"));
  }

  fs::path unfinished(const std::string& output = "q") const {
    return path(output) + ".unfinished";
  }
  // Blocks that are measured and rounded, the head among them.
  int64_t done() const {
    const fs::path progress = unfinished() / "progress.json";
    if (!fs::exists(progress)) return 0;
    const json object = json::parse(read_text(progress));
    return object["measured"].get<int64_t>() + object["rounded"].get<int64_t>();
  }
  // Stops the command once so many are done; where its result was there by then, another one.
  int stop_behind(int64_t parts, int signal, const std::string& said = "/dev/null") const {
    for (int tries = 0; tries < 20; ++tries) {
      Child child(quantise("q") + " --quiet", said);
      child.until([&] { return done() >= parts; });
      const int ended = child.stop(signal);
      if (ended != 0 && done() >= parts && !fs::exists(path("q"))) return ended;
      fs::remove_all(path("q"));
      fs::remove_all(unfinished());
    }
    ADD_FAILURE() << "it is not to be stopped behind " << parts;
    return 0;
  }
  // Halts the command where much of it is left, calls `meanwhile`, and lets it go on: its exit
  // code. What it says is in `said`.
  int change_meanwhile(const std::function<void()>& meanwhile) const {
    for (int tries = 0; tries < 20; ++tries) {
      {
        Child child(quantise("q") + " --quiet", path("said"));
        const bool begun = child.until([&] { return done() >= 1; });
        if (begun && child.halt() && done() <= 2) {
          meanwhile();
          child.signal(SIGCONT);
          return child.wait();
        }
      }
      fs::remove_all(path("q"));
      fs::remove_all(unfinished());
    }
    ADD_FAILURE() << "it is not to be halted";
    return 0;
  }
  // Whether the last command that was halted said so.
  bool said(const std::string& words) const {
    return read_text(path("said")).find(words) != std::string::npos;
  }
  static bool is_exl2() { return std::string(GetParam()).find("exl2") != std::string::npos; }
  // All parts but the last.
  static int64_t parts() { return is_exl2() ? 2 * kBlocks : kBlocks - 1; }

  // Runs the command to its end, which is as if it had never been stopped; its notes.
  std::string finish(const std::string& more = "", const std::string& as = "whole") const {
    const std::string notes = answer(quantise("q", more))["notes"].dump();
    EXPECT_EQ(contents(path("q")), contents(path(as)));
    EXPECT_FALSE(fs::exists(unfinished()));
    EXPECT_FALSE(fs::exists(path("q") + ".jackscrew-part"));
    fs::remove_all(path("q"));
    return notes;
  }
  // Runs it to the same end, but from the beginning, after a warning with the words of `says`.
  void finish_anew(const std::vector<std::string>& says, const std::string& more = "",
                   const std::string& as = "whole") const {
    const Outcome outcome = run(quantise("q", more) + " --quiet" + kErrorsOnly);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    for (const std::string& word : says) {
      EXPECT_NE(outcome.out.find(word), std::string::npos) << word << " in " << outcome.out;
    }
    EXPECT_EQ(contents(path("q")), contents(path(as)));
    EXPECT_FALSE(fs::exists(unfinished()));
    fs::remove_all(path("q"));
  }
};

TEST_P(SlowQuantiseResume, SurvivesBeingKilledAtAnyMoment) {
  std::mt19937 random(static_cast<uint32_t>(::testing::UnitTest::GetInstance()->random_seed()));
  for (int kills = 0; kills < 12; ++kills) {
    Child child(quantise("q") + " --quiet");
    const int64_t before = done();
    const bool waits = random() % 2 == 0;
    const std::chrono::microseconds delay(random() % 30000);
    child.until([&] { return !waits || done() > before; });
    const auto end = std::chrono::steady_clock::now() + delay;
    child.until([&] { return std::chrono::steady_clock::now() >= end; });
    if (child.stop(SIGKILL) == 0 || fs::exists(path("q"))) break;
    EXPECT_GE(done(), before);
  }
  finish("overwrite=true");
}

TEST_P(SlowQuantiseResume, GoesOnBehindTheLastWholeBlock) {
  for (const int64_t at : {int64_t{2}, parts()}) {
    stop_behind(at, SIGKILL);
    const bool measuring = is_exl2() && done() <= kBlocks;
    const int64_t there = is_exl2() && !measuring ? done() - kBlocks : done();
    const std::string notes = finish("threads=1");
    EXPECT_NE(
        notes.find(fmt::format("continued after {} {} of 6 blocks",
                               measuring ? "measuring" : "rounding", std::min(there, kBlocks))),
        std::string::npos)
        << notes;
  }
}

TEST_P(SlowQuantiseResume, AnInterruptSaysHowToGoOn) {
  const std::string said = path("said");
  EXPECT_EQ(stop_behind(1, SIGINT, said), 130);
  EXPECT_FALSE(fs::exists(path("q")));
  EXPECT_FALSE(fs::exists(path("q") + ".jackscrew-part"));
  const std::string text = read_text(said);
  for (const char* word :
       {"jackscrew: stopped after ", " of 6 blocks", "run the same command", "q.unfinished"}) {
    EXPECT_NE(text.find(word), std::string::npos) << text;
  }
  finish();
}

TEST_P(SlowQuantiseResume, AnyErrorSaysHowToGoOn) {
  stop_behind(2, SIGKILL);
  const Outcome outcome = run_shell("ulimit -f 1; exec " + std::string(kProgram) + " " +
                                    quantise("q") + " --quiet" + kErrorsOnly);
  expect_refused(outcome, 1,
                 {"needs a file of ",
                  "hint: raise the file size limit (ulimit -f) and run again; run the same command "
                  "again to continue from " +
                      unfinished().string() + "\n"});
  finish();
}

// The file may be whole again.
TEST_P(SlowQuantiseResume, ASourceThatIsCutShortIsNotTheEnd) {
  const fs::path weights = fs::path(path("base")) / "model.safetensors";
  fs::copy_file(weights, path("kept"));
  EXPECT_EQ(change_meanwhile([&] { fs::resize_file(weights, 0); }), 5);
  for (const std::string& words :
       {std::string(": the file was cut short"),
        "run the same command again to continue from " + unfinished().string() + "\n"}) {
    EXPECT_TRUE(said(words)) << read_text(path("said"));
  }
  fs::copy_file(path("kept"), weights, fs::copy_options::overwrite_existing);
  EXPECT_NE(finish().find("continued after "), std::string::npos);
}

TEST_P(SlowQuantiseResume, WhatAppearsAtTheOutputIsNotTheEnd) {
  const auto put = [&] {
    fs::create_directories(path("q"));
    write_text_atomic(fs::path(path("q")) / "notes", "mine");
  };
  EXPECT_EQ(change_meanwhile(put), 2);
  for (const std::string& words :
       {path("q") + " holds notes, which is not part of a model and would be lost\n",
        "hint: move it away, and run the same command again to continue from " +
            unfinished().string() + "\n"}) {
    EXPECT_TRUE(said(words)) << read_text(path("said"));
  }
  fs::remove_all(path("q"));
  EXPECT_NE(finish().find("continued after rounding 6 of 6 blocks"), std::string::npos);
}

TEST_P(SlowQuantiseResume, DoesNotBelieveWhatIsDamaged) {
  stop_behind(parts(), SIGKILL);
  const auto files = contents(unfinished());
  // Others were being written as it was killed, and nobody reads them.
  const json progress = json::parse(files.at("progress.json"));
  std::vector<std::string> names = {"progress.json"};
  for (const json& file : progress["files"]) names.push_back(file["name"]);
  if (progress.contains("stream")) names.push_back(progress["stream"]["name"]);
  int64_t damages = 0;
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    fs::remove_all(unfinished());
    fs::create_directories(unfinished());
    for (const auto& [other, bytes] : files) write_text_atomic(unfinished() / other, bytes);
    std::string damaged = files.at(name);
    const size_t at = damages % 2 == 0 ? damaged.size() / 2 : damaged.size() - 9;
    if (damages % 3 == 0) {
      damaged[at] = static_cast<char>(damaged[at] ^ 1);
    } else {
      damaged.resize(at);
    }
    write_text_atomic(unfinished() / name, damaged);
    finish_anew({name, name == "progress.json" ? "" : "corrupt", "starting over"});
    ++damages;
  }
  // A file of each part that is done, what the next one reads, and what lists them.
  EXPECT_EQ(damages, parts() + 2 - (is_exl2() ? kBlocks : 0));
  // A file that is missing.
  stop_behind(parts(), SIGKILL);
  EXPECT_TRUE(fs::remove(unfinished() / "block-00000.safetensors"));
  finish_anew({"starting over"});
}

// What cannot be read for a moment is no reason to begin again.
TEST_P(SlowQuantiseResume, KeepsWhatCannotBeRead) {
  stop_behind(parts(), SIGKILL);
  const auto files = contents(unfinished());
  for (const std::string name : {"block-00000.safetensors", "progress.json"}) {
    SCOPED_TRACE(name);
    const fs::path file = unfinished() / name;
    const fs::path aside = path("aside");
    fs::rename(file, aside);
    fs::create_symlink(file, file);  // the system does not open it
    const Outcome outcome = run(quantise("q") + " --quiet" + kErrorsOnly);
    EXPECT_NE(outcome.exit_code, 0);
    for (const char* words : {name.c_str(), "hint: see that it can be read"}) {
      EXPECT_NE(outcome.out.find(words), std::string::npos) << outcome.out;
    }
    EXPECT_EQ(outcome.out.find("starting over"), std::string::npos) << outcome.out;
    // Not written anew: that would go by way of a name that a killed write may have left here.
    fs::rename(aside, file);
    EXPECT_TRUE(contents(unfinished()) == files);
  }
  EXPECT_NE(finish().find("continued after rounding"), std::string::npos);
}

TEST(QuantisationCheckpoint, IsRemovedWhereWhatWasWrittenIsRefused) {
  const TemporaryDirectory directory("jackscrew_must_hold");
  const fs::path output = directory.path() / "q.gguf";
  const auto ops = make_test_ops(1);
  for (const bool is_refusal : {false, true}) {
    QuantisationCheckpoint checkpoint(output, {}, false);
    checkpoint.keep(*ops, {.measured = 1, .rounded = 0, .costs = {}, .errors = {}, .notes = {}},
                    nullptr);
    const ErrorKind kind = is_refusal ? ErrorKind::does_not_fit : ErrorKind::model;
    const auto look = [&] {
      checkpoint.must_hold(ErrorKind::does_not_fit, [&] { fail(kind, "no"); });
    };
    expect_message(kind, "no", look);
    EXPECT_EQ(fs::exists(checkpoint.directory()), !is_refusal);
  }
}

class QuantisationCheckpointFiles : public ::testing::Test {
 protected:
  // Begins a checkpoint with one rounded block and the stream behind it.
  std::unique_ptr<QuantisationCheckpoint> with_block(uint8_t code) {
    auto made = std::make_unique<QuantisationCheckpoint>(output_, QuantisationSettings(), false);
    made->begin_part(specs_);
    made->add({{specs_[0], {code, code, code, code}}});
    made->keep(*ops_, done(), &stream_);
    return made;
  }
  static QuantisationProgress done() {
    return {.measured = 0, .rounded = 1, .costs = {}, .errors = {}, .notes = {}};
  }

  const TemporaryDirectory directory_{"jackscrew_checkpoint_files"};
  const fs::path output_ = directory_.path() / "q.gguf";
  const std::unique_ptr<Ops> ops_ = make_test_ops(1);
  const std::vector<SafetensorsSpec> specs_ = {{"w", "U8", {4}}};
  std::vector<float> values_{1.0f, 2.0f};
  const Tensor stream_{values_.data(), DType::f32, {1, 2}};
};

TEST_F(QuantisationCheckpointFiles, AreReadAsTheyWereWritten) {
  const auto checkpoint = with_block(7);
  for (const char* name : {"block-00000.safetensors", "stream-00001.safetensors"}) {
    SCOPED_TRACE(name);
    const auto read = [&] {
      if (name[0] == 'b') {
        EXPECT_EQ(checkpoint->read(0, specs_)[0].bytes, std::vector<uint8_t>(4, 7));
      } else {
        checkpoint->read_stream(*ops_, stream_);
      }
    };
    const fs::path file = checkpoint->directory() / name;
    const std::string whole = read_text(file);
    std::string damaged = whole;
    damaged.back() = static_cast<char>(damaged.back() ^ 1);
    write_text_atomic(file, damaged);
    expect_message(ErrorKind::model, file.string() + " is corrupt: checksum mismatch", read);
    write_text_atomic(file, whole);
    read();
  }
  EXPECT_EQ(values_, (std::vector<float>{1.0f, 2.0f}));
}

TEST_F(QuantisationCheckpointFiles, AreNoneToContinueFromWhereTheFirstIsNotKept) {
  QuantisationCheckpoint checkpoint(output_, {}, false);
  {
    const AtomicFile another(checkpoint.directory() / "progress.json");
    expect_message(ErrorKind::generic, "another run is writing",
                   [&] { checkpoint.keep(*ops_, done(), &stream_); });
  }
  EXPECT_TRUE(checkpoint.empty());
  EXPECT_FALSE(checkpoint.continues_after(Error(ErrorKind::generic, "")));
}

TEST_F(QuantisationCheckpointFiles, AreContinuedFromWhereThatMayHelp) {
  const auto checkpoint = with_block(1);
  for (const ErrorKind kind :
       {ErrorKind::generic, ErrorKind::does_not_fit, ErrorKind::device, ErrorKind::interrupted}) {
    EXPECT_TRUE(checkpoint->continues_after(Error(kind, "")));
  }
  EXPECT_TRUE(checkpoint->continues_after(Unreadable(ErrorKind::model, "")));
  EXPECT_TRUE(checkpoint->continues_after(PlaceTaken("", "")));
  for (const ErrorKind kind : {ErrorKind::usage, ErrorKind::model, ErrorKind::non_finite}) {
    EXPECT_FALSE(checkpoint->continues_after(Error(kind, "")));
  }
}

TEST_F(QuantisationCheckpointFiles, OfANewerVersionAreOnlyReplacedWhereThatIsAskedFor) {
  const fs::path kept = with_block(7)->directory();
  const auto set_format = [&](int64_t change) {
    json fields = json::parse(read_text(kept / "progress.json"));
    fields["format"] = fields["format"].get<int64_t>() + change;
    JsonObject object;
    for (const auto& [name, value] : fields.items()) {
      if (name != kChecksumMember) object.add_json(name, value.dump());
    }
    write_text_atomic(kept / "progress.json", with_checksum(object) + "\n");
  };
  const auto open = [&](bool replace) {
    return QuantisationCheckpoint(output_, {}, replace).empty();
  };
  set_format(1);
  const auto files = contents(kept);
  EXPECT_TRUE(files.contains("block-00000.safetensors"));
  expect_message(ErrorKind::usage, "holds what a newer version has finished: progress.json is of",
                 [&] { open(false); });
  EXPECT_TRUE(contents(kept) == files);
  EXPECT_TRUE(open(true));
  EXPECT_FALSE(fs::exists(kept));
  // An older version's starts over.
  with_block(7);
  set_format(-1);
  EXPECT_TRUE(open(false));
  EXPECT_FALSE(fs::exists(kept));
}

// Somebody moves the directory, and another process makes one of that name.
TEST_F(QuantisationCheckpointFiles, OfAnotherAreNeitherReadNorChanged) {
  auto first = with_block(1);
  const fs::path aside = directory_.path() / "aside";
  const auto refuse = [&] {
    const auto refused = [&](const auto& action) {
      expect_error(ErrorKind::generic,
                   first->directory().string() +
                       " was moved or removed while it was written | run the same command again",
                   action);
    };
    EXPECT_FALSE(first->is_in_place());
    refused([&] { first->begin_part(specs_); });
    refused([&] { first->keep(*ops_, done(), nullptr); });
    refused([&] { first->read_stream(*ops_, stream_); });
    refused([&] { first->read(0, specs_); });
  };
  fs::rename(first->directory(), aside);
  refuse();
  const auto second = with_block(2);
  refuse();
  first->remove();
  first.reset();
  EXPECT_TRUE(second->is_in_place());
  EXPECT_EQ(second->read(0, specs_)[0].bytes, std::vector<uint8_t>(4, 2));
  EXPECT_TRUE(fs::exists(second->directory() / "progress.json"));
  EXPECT_TRUE(fs::exists(aside / "progress.json"));
}

TEST_P(SlowQuantiseResume, OtherSettingsDoNotGoOn) {
  stop_behind(2, SIGKILL);
  const auto refuse = [&](const std::string& more, const std::vector<std::string>& says) {
    const Outcome outcome = run(quantise("q", more) + " --quiet" + kErrorsOnly);
    expect_refused(outcome, 2, says);
    EXPECT_GE(done(), 2);
    // No checksums; what follows from another setting is not named beside it.
    EXPECT_FALSE(std::regex_search(outcome.out, std::regex("(was|is) [0-9a-f]{8}"))) << outcome.out;
    EXPECT_EQ(outcome.out.find("data comes") == std::string::npos,
              more.find("data=") == std::string::npos)
        << outcome.out;
  };
  refuse("bits=3",
         {"q.unfinished", "bits was 4 and is 3 now", "overwrite=true", "give another output\n"});
  refuse("damp_percent=0.02", {"damp_percent was 0.01 and is 0.02 now"});
  refuse("calibration_sequences=7", {"calibration_sequences was 8 and is 7 now"});
  refuse("sequence_len=32 calibration_sequences=16", {"sequence_len was 64 and is 32 now"});
  std::string text = read_text(tiny_.data());
  text[text.find("number")] = 'N';
  refuse("data=" + tiny_.file("changed.jsonl", text),
         {"another quantisation: data comes to other tokens\n"});
  tiny_.must_train("other", "method=full max_steps=1 seed=2 init=pretrained model=" + path("base"));
  refuse("model=" + path("other"), {"another quantisation: model is another\n"});
  tiny_.must_train("adapter", "method=lora max_steps=1 init=pretrained model=" + path("base"));
  refuse("adapter=" + path("adapter"), {"another quantisation: adapter was not set and is now\n"});
  refuse("adapter_weight=0.5 adapter=" + path("adapter"),
         {"adapter_weight was not set and is 0.5 now"});
  answer(quantise("three", "bits=3"));
  finish_anew({"bits was 4 and is 3 now", "starting over"}, "bits=3 overwrite=true", "three");
}

TEST_P(SlowQuantiseResume, KeepsWhatIsNotItsOwn) {
  fs::create_directories(unfinished());
  write_text_atomic(unfinished() / "notes.txt", "mine");
  answer(quantise("q"));
  EXPECT_EQ(contents(unfinished()), (std::map<std::string, std::string>{{"notes.txt", "mine"}}));
  fs::remove_all(path("q"));
  // Two at a time would write the same files.
  const DirectoryLock another(unfinished());
  expect_refused(run(quantise("q") + " --quiet" + kErrorsOnly), 1, {"another run", "q.unfinished"});
}

INSTANTIATE_TEST_SUITE_P(Formats, SlowQuantiseResume,
                         ::testing::Values("bits=4 group_size=32", "format=exl2 bits=4"));

}  // namespace
}  // namespace jackscrew
