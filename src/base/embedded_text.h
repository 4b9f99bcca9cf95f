// A file of the source tree that the build made a part of the program (cmake/EmbeddedTexts.cmake).
#pragma once

namespace jackscrew {

struct EmbeddedText {
  const char* name;  // the file's, without extension
  const char* text;
};

}  // namespace jackscrew
