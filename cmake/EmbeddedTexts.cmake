# Texts of this tree become a part of the program: `function`, declared in `header`, returns their
# names (of files, without extension) and their contents, in the order of `files`.
function(jackscrew_embed_texts target header function files)
  set(rows "")
  foreach(file IN LISTS files)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    get_filename_component(name ${file} NAME_WE)
    file(READ ${file} text)
    string(APPEND rows "    {\"${name}\", R\"__text(${text})__text\"},\n")
  endforeach()
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${function}.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"@header@\"

namespace jackscrew {

std::span<const EmbeddedText> @function@() {
  static constexpr EmbeddedText kTexts[] = {
@rows@  };
  return kTexts;
}

}  // namespace jackscrew
" @ONLY)
  target_sources(${target} PRIVATE ${source})
endfunction()

function(jackscrew_add_texts target)
  file(GLOB recipes CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/recipes/*.yaml)
  jackscrew_embed_texts(${target} cli/recipes.h recipe_texts "${recipes}")
  # What quantize calibrates on where no data are given: prose, tables, commands, C++ and Python.
  file(GLOB texts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/README.md ${CMAKE_SOURCE_DIR}/docs/*.md
    ${CMAKE_SOURCE_DIR}/bench/*.cc ${CMAKE_SOURCE_DIR}/tools/*_parity.py)
  jackscrew_embed_texts(${target} conversion/calibration_text.h embedded_calibration_texts "${texts}")
endfunction()
