# What `cmake --install` gives, by component (each is a package, src/cmake/packages.cmake):
#   runtime  the C library             devel  headers, both libraries, CMake package, pkg-config file, the one header
#   tool     kvpack, its manual page and completions        python  the Python package
#   llama    the adapter of llama.cpp with its header, where it is built
set(KVPACK_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/kvpack)

install(TARGETS kvpack_core kvpack EXPORT kvpackTargets
  ARCHIVE COMPONENT devel
  FILE_SET HEADERS COMPONENT devel)
if(TARGET kvpack_c)
  install(TARGETS kvpack_c EXPORT kvpackTargets
    LIBRARY COMPONENT runtime NAMELINK_COMPONENT devel
    FILE_SET HEADERS COMPONENT devel)
endif()
install(EXPORT kvpackTargets NAMESPACE kvpack:: DESTINATION ${KVPACK_CMAKE_DIR} COMPONENT devel)
# In a file of its own, which the package finds where it is: the others do without it.
if(TARGET kvpack_llama)
  install(TARGETS kvpack_llama EXPORT kvpackLlamaTargets
    LIBRARY COMPONENT llama
    FILE_SET HEADERS COMPONENT llama)
  install(EXPORT kvpackLlamaTargets NAMESPACE kvpack:: DESTINATION ${KVPACK_CMAKE_DIR} COMPONENT llama)
endif()

configure_package_config_file(src/cmake/kvpackConfig.cmake.in ${PROJECT_BINARY_DIR}/kvpackConfig.cmake
  INSTALL_DESTINATION ${KVPACK_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvpackConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvpackConfig.cmake ${PROJECT_BINARY_DIR}/kvpackConfigVersion.cmake
  DESTINATION ${KVPACK_CMAKE_DIR} COMPONENT devel)

# The file finds its own prefix, so that an installation can be moved and staged.
file(RELATIVE_PATH KVPACK_PC_TO_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(src/cmake/kvpack_c.pc.in ${PROJECT_BINARY_DIR}/kvpack_c.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvpack_c.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT devel)
if(TARGET kvpack_llama)
  configure_file(src/cmake/kvpack_llama.pc.in ${PROJECT_BINARY_DIR}/kvpack_llama.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/kvpack_llama.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT llama)
endif()

# Files that are made: the path, what it is made from, the command whose output it is, and where it goes.
function(kvpack_install_made file)
  cmake_parse_arguments(PARSE_ARGV 1 made "" "DESTINATION;COMPONENT" "COMMAND;DEPENDS")
  get_filename_component(folder ${file} DIRECTORY)
  add_custom_command(OUTPUT ${file}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
    COMMAND ${made_COMMAND}
    DEPENDS ${made_DEPENDS} VERBATIM)
  get_filename_component(name ${file} NAME)
  add_custom_target(kvpack_made_${made_COMPONENT}_${name} ALL DEPENDS ${file})
  add_dependencies(all_but_tests kvpack_made_${made_COMPONENT}_${name})
  install(FILES ${file} DESTINATION ${made_DESTINATION} COMPONENT ${made_COMPONENT})
endfunction()
set(KVPACK_MADE ${PROJECT_BINARY_DIR}/made)

find_package(Python3 3.9 COMPONENTS Interpreter)
if(Python3_Interpreter_FOUND)
  list(TRANSFORM KVPACK_HEADERS PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE amalgamated)
  kvpack_install_made(${KVPACK_MADE}/kvpack.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT devel
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/src/cmake/amalgamate.py ${PROJECT_SOURCE_DIR}/include
      ${PROJECT_SOURCE_DIR}/LICENSE ${KVPACK_MADE}/kvpack.hpp --version ${PROJECT_VERSION}
    DEPENDS ${PROJECT_SOURCE_DIR}/src/cmake/amalgamate.py ${PROJECT_SOURCE_DIR}/LICENSE ${amalgamated})
endif()

if(TARGET kvpack_tool)
  install(TARGETS kvpack_tool RUNTIME COMPONENT tool)
  if(NOT CMAKE_CROSSCOMPILING)
    # Where a zsh of that prefix looks; that of Debian has a folder of its own for packages.
    set(zsh_folder zsh/site-functions)
    if(CMAKE_INSTALL_PREFIX STREQUAL "/usr" AND EXISTS /etc/debian_version)
      set(zsh_folder zsh/vendor-completions)
    endif()
    foreach(shell_and_place bash:bash-completion/completions/kvpack zsh:${zsh_folder}/_kvpack
        fish:fish/vendor_completions.d/kvpack.fish)
      string(REPLACE ":" ";" parts ${shell_and_place})
      list(GET parts 0 shell)
      list(GET parts 1 place)
      get_filename_component(folder ${place} DIRECTORY)
      kvpack_install_made(${KVPACK_MADE}/${place} DESTINATION ${CMAKE_INSTALL_DATADIR}/${folder} COMPONENT tool
        COMMAND sh -c "exec \"$0\" completion ${shell} >\"$1\"" $<TARGET_FILE:kvpack_tool> ${KVPACK_MADE}/${place}
        DEPENDS kvpack_tool)
    endforeach()
  endif()
  # The manual page is docs/cli.md. Without lowdown there is none.
  find_program(KVPACK_LOWDOWN lowdown)
  if(KVPACK_LOWDOWN)
    kvpack_install_made(${KVPACK_MADE}/kvpack.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tool
      COMMAND sh ${PROJECT_SOURCE_DIR}/src/cmake/manual.sh ${KVPACK_LOWDOWN} ${PROJECT_SOURCE_DIR}/docs/cli.md
        ${PROJECT_VERSION} ${KVPACK_MADE}/kvpack.1.gz
      DEPENDS ${PROJECT_SOURCE_DIR}/src/cmake/manual.sh ${PROJECT_SOURCE_DIR}/docs/cli.md)
  endif()
endif()

set(KVPACK_PYTHON_DIR lib/python3/dist-packages CACHE STRING "Where the Python package goes, below the prefix")
install(DIRECTORY capi/python/kvpack DESTINATION ${KVPACK_PYTHON_DIR} COMPONENT python
  FILES_MATCHING PATTERN "*.py" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)

foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${KVPACK_PACKAGE_${component}} RENAME copyright
    COMPONENT ${component})
endforeach()
