// Where models are written: what is replaced there, and what never is.
#include "conversion/model_output.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/process_memory.h"
#include "conversion/convert.h"
#include "tests/cli/run_program.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"
#include "tests/support/resource_limit.h"
#include "tests/support/sanitizer.h"

namespace jackscrew {
namespace {

class ModelOutputTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }
  std::string text(const std::string& name) const { return read_text(path(name)); }
  ModelOutput output(const std::string& settings) const {
    return ModelOutput(make_recipe({"model=" + golden_model("mha_untied"), settings}), "export");
  }
  ModelOutput replacing(const std::string& setting) const {
    return ModelOutput(
        make_recipe({"model=" + golden_model("mha_untied"), setting, "overwrite=true"}), "export");
  }
  void write_gguf(ModelOutput& output, const std::string& more) const {
    output.begin({1, 1});
    FileWriter writer(output.path());
    writer.write("GGUF" + more);
    writer.close();
  }
  std::vector<std::string> names(const std::string& below = "") const {
    std::vector<std::string> out;
    for (const auto& entry : fs::directory_iterator(directory_.path() / below)) {
      out.push_back(entry.path().filename().string());
    }
    std::sort(out.begin(), out.end());
    return out;
  }

  const TemporaryDirectory directory_{"jackscrew_model_output"};
};

TEST_F(ModelOutputTest, RemovesNothingThatItDidNotMake) {
  for (const char* name : {"y.gguf.part", "y.gguf.jackscrew-part", "y.gguf.old"}) {
    directory_.file(name, "mine");
  }
  { const ModelOutput never_begun = output("output=" + path("y.gguf")); }
  EXPECT_EQ(text("y.gguf.part") + text("y.gguf.jackscrew-part"), "minemine");
  {
    ModelOutput abandoned = output("output=" + path("y.gguf"));
    write_gguf(abandoned, "1");
  }
  EXPECT_EQ(names(), (std::vector<std::string>{"y.gguf.old", "y.gguf.part"}));
  ModelOutput written = output("output=" + path("y.gguf"));
  write_gguf(written, "2");
  written.commit();
  EXPECT_EQ(names(), (std::vector<std::string>{"y.gguf", "y.gguf.old", "y.gguf.part"}));
  EXPECT_EQ(text("y.gguf"), "GGUF2");
}

TEST_F(ModelOutputTest, ReplacesModelsAlone) {
  directory_.file("mydata.jsonl", "{}");
  directory_.file("m.gguf", "GGUF1");
  directory_.file("empty.gguf", "");
  fs::create_symlink(path("m.gguf"), path("link.gguf"));
  const auto refused = [&](const std::string& setting, const char* part) {
    expect_message(ErrorKind::usage, part, [&] {
      ModelOutput(make_recipe({"model=" + golden_model("mha_untied"), "overwrite=true",
                               "format=gguf", "output=" + setting}),
                  "export");
    });
  };
  refused(path("mydata.jsonl"), "mydata.jsonl is not a GGUF file, and would be lost");
  refused(path("link.gguf"), "link.gguf is a symbolic link, where a GGUF file is to be written");
  refused("/dev/null", "/dev/null is no ordinary file, where a GGUF file is to be written");
  expect_message(ErrorKind::usage, "exists already", [&] { output("output=" + path("m.gguf")); });
  for (const char* setting : {"output=-", "output_dir=-"}) {
    expect_message(ErrorKind::usage, "a model cannot be written to the standard output",
                   [&] { output(setting); });
  }
  for (const char* name : {"m.gguf", "empty.gguf"}) {
    ModelOutput replaced = replacing("output=" + path(name));
    write_gguf(replaced, "2");
    replaced.commit();
    EXPECT_EQ(text(name), "GGUF2");
  }
}

TEST_F(ModelOutputTest, FilesOfOthersStayInDirectories) {
  const std::string setting = "output_dir=" + path("m");
  fs::create_directories(path("m/additional_chat_templates"));
  directory_.file("m/config.json", "{}");
  directory_.file("m/additional_chat_templates/tool_use.jinja", "");
  { const ModelOutput fine = replacing(setting); }
  directory_.file("m/additional_chat_templates/notes.txt", "mine");
  expect_message(ErrorKind::usage, "holds additional_chat_templates", [&] { replacing(setting); });
  fs::remove(path("m/additional_chat_templates/notes.txt"));
  directory_.file("m/notes.txt", "mine");
  expect_message(ErrorKind::usage, "holds notes.txt", [&] { replacing(setting); });
  remove_model(path("m"));
  EXPECT_EQ(names("m"), std::vector<std::string>{"notes.txt"});
  fs::remove(path("m/notes.txt"));
  directory_.file("m/config.json", "{}");
  remove_model(path("m"));
  EXPECT_FALSE(fs::exists(path("m")));
}

// Between the last look and the exchange of names.
TEST_F(ModelOutputTest, WhatIsPutIntoAModelThatIsReplacedStays) {
  for (const char* name : {"m", "old", "old/additional_chat_templates"}) {
    fs::create_directory(path(name));
  }
  for (const char* name : {"m/config.json", "old/config.json"}) directory_.file(name, name);
  directory_.file("old/notes.txt", "mine");
  remove_replaced(path("old"), path("m"));
  EXPECT_EQ(names(), std::vector<std::string>{"m"});
  EXPECT_EQ(names("m"), (std::vector<std::string>{"config.json", "notes.txt"}));
  EXPECT_EQ(text("m/config.json") + text("m/notes.txt"), "m/config.jsonmine");
  // What cannot go there stays where it is, and a warning says so.
  for (const char* name : {"m", "old"}) {
    const std::string templates = std::string(name) + "/additional_chat_templates";
    fs::create_directories(path(templates));
    directory_.file(templates + "/notes.txt", name);
  }
  ::testing::internal::CaptureStderr();
  remove_replaced(path("old"), path("m"));
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("something is left in " + path("old")), std::string::npos) << said;
  EXPECT_EQ(text("old/additional_chat_templates/notes.txt"), "old");
  EXPECT_EQ(text("m/additional_chat_templates/notes.txt"), "m");
}

// It may be finished, or what goes on to replace the output.
TEST_F(ModelOutputTest, NamesWhatAQuantizeHasLeft) {
  directory_.file("m.gguf", "GGUF1");
  const auto refusal = [&] {
    return error_of(ErrorKind::usage, [&] { output("output=" + path("m.gguf")); });
  };
  EXPECT_EQ(refusal().find("unfinished"), std::string::npos) << refusal();
  fs::create_directory(path("m.gguf.unfinished"));
  EXPECT_NE(refusal().find(path("m.gguf.unfinished") + " is left of a quantize that was stopped"),
            std::string::npos)
      << refusal();
}

// A run's own recipe names the directory of that run.
TEST_F(ModelOutputTest, TheCommandLineGoesBeforeARecipe) {
  const auto target = [&](const std::string& recipe, const std::string& setting) {
    const std::string file = directory_.file("run.yaml", recipe);
    return ModelOutput(make_recipe({file, "model=" + golden_model("mha_untied"), setting}),
                       "export");
  };
  const ModelOutput file = target("output_dir: " + path("run"), "output=" + path("m.gguf"));
  EXPECT_EQ(file.target(), path("m.gguf"));
  EXPECT_EQ(file.format(), ModelFormat::gguf);
  const ModelOutput model = target("output: " + path("m.gguf"), "output_dir=" + path("m.bin"));
  EXPECT_EQ(model.target(), path("m.bin"));
  EXPECT_EQ(model.format(), ModelFormat::hf);
  expect_message(ErrorKind::usage, "both output_dir and output are set", [&] {
    target("output_dir: " + path("run") + "\noutput: " + path("m.gguf"), "threads=1");
  });
}

// As in a download cache: a directory of links to files elsewhere.
TEST_F(ModelOutputTest, WhatIsReadThroughLinksStays) {
  fs::create_directories(path("links"));
  fs::create_directories(path("files"));
  directory_.file("files/model.safetensors", "");
  fs::create_symlink("../files/model.safetensors", path("links/model.safetensors"));
  expect_message(ErrorKind::usage, "files is what is read, and would be replaced", [&] {
    ModelOutput(
        make_recipe({"model=" + path("links"), "output_dir=" + path("files"), "overwrite=true"}),
        "export");
  });
}

// The name that the output has until it is whole: what is there is removed first.
TEST_F(ModelOutputTest, WhatIsReadFromTheTemporaryNameStays) {
  const auto refused = [&](const std::vector<std::string>& settings, const std::string& read) {
    SCOPED_TRACE(read);
    expect_message(ErrorKind::usage,
                   path(read) + " is what is read, and would be removed: " + path("z"), [&] {
                     std::vector<std::string> all = {"model=" + golden_model("mha_untied")};
                     all.insert(all.end(), settings.begin(), settings.end());
                     ModelOutput(make_recipe(all), "quantize");
                   });
  };
  for (const std::string end : {".jackscrew-part", ".jackscrew-part.old"}) {
    const std::string there = "z" + end;
    fs::create_directories(path(there));
    directory_.file(there + "/data.jsonl", "{}");
    fs::create_symlink("/dev/null", path(there + "/link.jsonl"));
    const std::string output_dir = "output_dir=" + path("z");
    refused({"model=" + path(there), output_dir}, there);
    refused({"adapter=" + path(there), output_dir}, there);
    for (const char* file : {"/data.jsonl", "/link.jsonl"}) {
      refused({"data=" + path(there + file), output_dir}, there + file);
    }
    refused({"eval_data=" + path(there), output_dir}, there);
    fs::remove_all(path(there));
    directory_.file(there, "GGUF");
    refused({"model=" + path(there), "format=gguf", output_dir}, there);
    fs::remove(path(there));
  }
}

// quantize rounds everything before it makes the temporary, whose name is longer.
TEST_F(ModelOutputTest, NamesThatAreTooLongAreRefusedAtOnce) {
  const std::string suffix = ".jackscrew-part.old";
  const auto most = static_cast<size_t>(::pathconf(path("").c_str(), _PC_NAME_MAX)) - suffix.size();
  // The directory above it is made when the output is.
  for (const std::string above : {"", "made/later/"}) {
    const std::string name(most, 'n');
    { const ModelOutput fits = output("output_dir=" + path(above + name)); }
    expect_message(
        ErrorKind::usage,
        fmt::format("{}n has {} bytes, and may have {}: ", path(above + name), most + 1, most),
        [&] { output("output_dir=" + path(above + name + "n")); });
  }
  EXPECT_EQ(names(), std::vector<std::string>());
}

TEST_F(ModelOutputTest, ATokenizerThatIsReadStays) {
  fs::create_directories(path("other"));
  directory_.file("other/tokenizer.json", "{}");
  directory_.file("other.gguf", "GGUF1");
  const auto refused = [&](const std::string& tokenizer, const std::string& target) {
    expect_message(ErrorKind::usage, path(target) + " is what is read, and would be replaced", [&] {
      ModelOutput(
          make_recipe({"model=" + golden_model("mha_untied"), "tokenizer=" + path(tokenizer),
                       "output=" + path(target), "overwrite=true"}),
          "export");
    });
  };
  refused("other", "other");
  refused("other/tokenizer.json", "other");
  refused("other.gguf", "other.gguf");
  fs::create_directories(path("snapshot"));
  fs::create_symlink("../other/tokenizer.json", path("snapshot") + "/tokenizer.json");
  refused("snapshot/tokenizer.json", "snapshot");
  // A name that no path has.
  const ModelOutput bytes(make_recipe({"model=" + golden_model("mha_untied"), "tokenizer=bytes",
                                       "output_dir=" + path("other"), "overwrite=true"}),
                          "export");
}

TEST_F(ModelOutputTest, AMountedFileSystemIsNotReplaced) {
  ASSERT_TRUE(fs::is_directory("/proc"));
  expect_message(ErrorKind::usage, "/proc is a mounted file system",
                 [&] { replacing("output_dir=/proc"); });
}

TEST_F(ModelOutputTest, WhatCannotBeListedIsNotReplaced) {
  if (kSanitized) GTEST_SKIP() << "UndefinedBehaviorSanitizer needs a descriptor, too";
  fs::create_directories(path("m"));
  const Recipe recipe =
      make_recipe({"model=" + golden_model("mha_untied"), "output_dir=" + path("m")});
  const ResourceLimit none(RLIMIT_NOFILE, 0);
  expect_message(ErrorKind::generic, "cannot list " + path("m") + ": ",
                 [&] { const ModelOutput output(recipe, "export"); });
}

// It may be a GGUF file: nothing says that it is none.
TEST_F(ModelOutputTest, WhatCannotBeReadIsNotCalledAnotherFile) {
  if (kSanitized) GTEST_SKIP() << "UndefinedBehaviorSanitizer needs a descriptor, too";
  directory_.file("m.gguf", "GGUF1");
  const Recipe recipe = make_recipe(
      {"model=" + golden_model("mha_untied"), "output=" + path("m.gguf"), "overwrite=true"});
  const ResourceLimit none(RLIMIT_NOFILE, 0);
  expect_message(ErrorKind::model, "cannot open " + path("m.gguf") + ": Too many open files",
                 [&] { const ModelOutput output(recipe, "export"); });
}

// Of the same file system as what is around it.
TEST_F(ModelOutputTest, WhatIsMountedAtAPlaceIsNotReplaced) {
  fs::create_directories(path("m"));
  directory_.file("m.gguf", "GGUF1");
  for (const auto& [name, message] : {std::pair("m", "m is a mounted file system"),
                                      std::pair("m.gguf", "m.gguf is a mounted file, ")}) {
    const std::string place = path(name);
    SCOPED_TRACE(place);
    { const ModelOutput free = replacing("output=" + place); }
    if (::mount(place.c_str(), place.c_str(), nullptr, MS_BIND, nullptr) != 0) {
      GTEST_SKIP() << "no right to mount";
    }
    expect_message(ErrorKind::usage, message, [&] { replacing("output=" + place); });
    ::umount2(place.c_str(), MNT_DETACH);
  }
}

// Whoever is in a directory that is replaced is in none any more.
TEST_F(ModelOutputTest, TheCurrentDirectoryIsNotReplaced) {
  const fs::path before = fs::current_path();
  fs::create_directories(path("here"));
  fs::current_path(path("here"));
  const std::string full = "output_dir=" + path("here");
  for (const std::string& setting :
       {std::string("output_dir=."), std::string("output_dir=./"), std::string("output=."), full}) {
    SCOPED_TRACE(setting);
    expect_message(ErrorKind::usage, "here is the current directory", [&] { output(setting); });
  }
  expect_message(ErrorKind::usage, "holds here, which is not part of a model",
                 [&] { output("output_dir=.."); });
  fs::current_path(before);
  EXPECT_EQ(names("here"), std::vector<std::string>());
}

// Temporaries lie beside it, whatever its path ends in.
TEST_F(ModelOutputTest, PathsThatEndInNoName) {
  fs::create_directories(path("m"));
  for (const char* end : {"/.", "/", "/./", "/x/.."}) {
    SCOPED_TRACE(end);
    ModelOutput written = replacing("output_dir=" + path("m") + end);
    EXPECT_EQ(written.target().filename(), "m");
    written.begin({1, 1});
    FileWriter(written.path() / "config.json").write("{}");
    EXPECT_EQ(names(), (std::vector<std::string>{"m", "m.jackscrew-part"}));
    written.commit();
    EXPECT_EQ(names("m"), std::vector<std::string>{"config.json"});
  }
  fs::create_directories(path("m.unfinished"));
  const DirectoryLock held(path("m.unfinished"));
  expect_message(ErrorKind::generic, "another run is writing",
                 [&] { require_no_writer(path("m") + "/."); });
}

TEST_F(ModelOutputTest, TwoAtATimeAreRefused) {
  ModelOutput first = output("output=" + path("y.gguf"));
  ModelOutput second = output("output=" + path("y.gguf"));
  ModelOutput third = output("output=" + path("y.gguf"));
  write_gguf(first, "1");
  expect_message(ErrorKind::generic, "another run is writing to " + path("y.gguf"), [&] {
    second.begin({1, 1});
  });
  first.commit();
  expect_message(ErrorKind::usage, "exists already", [&] { third.begin({1, 1}); });
  EXPECT_EQ(text("y.gguf"), "GGUF1");
}

// train holds its output_dir, quantize what it goes on from, export and merge what they write.
TEST_F(ModelOutputTest, OneOfAnyKindIsRefusedBesideAnother) {
  for (const char* name : {"q", "q.unfinished", "q.jackscrew-part"}) {
    fs::create_directories(path(name));
    {
      const DirectoryLock held(path(name));
      // Nobody has given the temporary its name.
      const std::string shown = name == std::string("q.jackscrew-part") ? "q" : name;
      EXPECT_EQ(
          message_of(error_of(ErrorKind::generic, [&] { output("output_dir=" + path("q")); })),
          "another run is writing to " + path(shown));
    }
    { const ModelOutput free = output("output_dir=" + path("q")); }
    fs::remove_all(path(name));
  }
}

// Before its work, which quantize may do for hours.
TEST_F(ModelOutputTest, OneIsRefusedBesideAnotherThatWritesAFile) {
  ModelOutput first = output("output=" + path("y.gguf"));
  first.begin({1, 1});
  EXPECT_EQ(message_of(error_of(ErrorKind::generic, [&] { output("output=" + path("y.gguf")); })),
            "another run is writing to " + path("y.gguf"));
  first.require_in_place();
}

// Of shards, all may be smaller than what they are together.
TEST_F(ModelOutputTest, NoFileIsBegunThatMayNotBecomeSoLarge) {
  const ResourceLimit limited(RLIMIT_FSIZE, 4096);
  ModelOutput output = replacing("output_dir=" + path("m"));
  const std::string error = error_of(ErrorKind::generic, [&] { output.begin({8192, 4097}); });
  EXPECT_EQ(error, path("m") +
                       " needs a file of 4.0 KiB (4097 B), but no file may have more than 4.0 KiB "
                       "(4096 B) | raise the file size limit (ulimit -f) and run again");
  EXPECT_EQ(names(), std::vector<std::string>());
  output.begin({8192, 4096});
}

// Files in memory share it with the work that writes them.
TEST_F(ModelOutputTest, FilesInMemoryCountTogetherWithTheWork) {
  constexpr int64_t kMore = int64_t{1} << 55;  // than any machine has
  const fs::path shared = fs::path("/dev/shm") / fmt::format("jackscrew_space_{}", ::getpid());
  if (!files_take_memory(shared)) GTEST_SKIP() << "no tmpfs at /dev/shm";
  const ModelOutput in_memory = output("output=" + shared.string() + ".gguf");
  EXPECT_NO_THROW(in_memory.require_space({1, 1}, 0));
  expect_error(ErrorKind::does_not_fit, " is in memory (tmpfs): give an output on a disk", [&] {
    in_memory.require_space({1, 1}, kMore);
  });
  // What is on a disk takes none.
  if (files_take_memory(directory_.path())) return;
  EXPECT_NO_THROW(output("output=" + path("y.gguf")).require_space({1, 1}, kMore));
}

// Not what the configuration's shapes would take of the disk.
TEST_F(ModelOutputTest, ShapesAreLookedAtBeforeSpace) {
  fs::copy(golden_model("mha_untied"), path("read"));
  auto config = nlohmann::json::parse(text("read/config.json"));
  config["intermediate_size"] = 41;
  directory_.file("read/config.json", config.dump());
  for (const char* target : {"output_dir=", "output="}) {
    SCOPED_TRACE(target);
    const Recipe recipe =
        make_recipe({"model=" + path("read"), "tokenizer=bytes", "storage=f32",
                     target + path(target == std::string("output=") ? "m.gguf" : "m")});
    const ConvertedModel model(recipe);
    ModelOutput output(recipe, "export");
    expect_message(ErrorKind::model,
                   "tensor model.layers.0.mlp.gate_proj.weight has shape [40, 32], the "
                   "configuration asks for [41, 32]",
                   [&] { write_converted(recipe, model, output, {.quiet = true}); });
    EXPECT_EQ(names(), std::vector<std::string>{"read"});
  }
}

// What appears at the output's name while it is being made is not replaced.
TEST_F(ModelOutputTest, LooksAgainAtTheEnd) {
  ModelOutput output = replacing("output_dir=" + path("m"));
  output.begin({1, 1});
  fs::create_directories(path("m"));
  directory_.file("m/notes.txt", "mine");
  expect_message(ErrorKind::usage, "holds notes.txt", [&] { output.commit(); });
  EXPECT_EQ(text("m/notes.txt"), "mine");
}

// Somebody has removed it, and another process has begun the same output.
TEST_F(ModelOutputTest, OnlyWhatWasWrittenIsPutInPlace) {
  for (const char* name : {"y.gguf", "m"}) {
    SCOPED_TRACE(name);
    ModelOutput first = output("output_dir=" + path(name));
    first.begin({1, 1});
    first.require_in_place();
    fs::remove_all(first.path());
    ModelOutput another = output("output_dir=" + path(name));
    another.begin({1, 1});
    const auto refuse = [](const auto& action) {
      expect_message(ErrorKind::generic, "was moved or removed", action);
    };
    refuse([&] { first.require_in_place(); });
    refuse([&] { first.written_bytes(); });
    refuse([&] { first.commit(); });
    EXPECT_EQ(names(), std::vector<std::string>{std::string(name) + ".jackscrew-part"});
  }
}

}  // namespace
}  // namespace jackscrew
