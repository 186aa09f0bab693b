# What `cmake --install` gives: headers, both libraries, the tool, a CMake package and a pkg-config file, and where Python
# is to be had the header-only rooms as one header.
set(KVPACK_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/kvpack)

install(TARGETS kvpack_core kvpack EXPORT kvpackTargets FILE_SET HEADERS)
if(TARGET kvpack_c)
  install(TARGETS kvpack_c EXPORT kvpackTargets FILE_SET HEADERS)
endif()
if(TARGET kvpack_tool)
  install(TARGETS kvpack_tool RUNTIME)
endif()
install(EXPORT kvpackTargets NAMESPACE kvpack:: DESTINATION ${KVPACK_CMAKE_DIR})

configure_package_config_file(src/cmake/kvpackConfig.cmake.in ${PROJECT_BINARY_DIR}/kvpackConfig.cmake
  INSTALL_DESTINATION ${KVPACK_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvpackConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvpackConfig.cmake ${PROJECT_BINARY_DIR}/kvpackConfigVersion.cmake
  DESTINATION ${KVPACK_CMAKE_DIR})

find_package(Python3 3.9 COMPONENTS Interpreter)
if(Python3_Interpreter_FOUND)
  set(KVPACK_SINGLE_HEADER ${PROJECT_BINARY_DIR}/single/kvpack.hpp)
  list(TRANSFORM KVPACK_HEADERS PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE amalgamated)
  add_custom_command(OUTPUT ${KVPACK_SINGLE_HEADER}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/single
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/src/cmake/amalgamate.py ${PROJECT_SOURCE_DIR}/include
      ${PROJECT_SOURCE_DIR}/LICENSE ${KVPACK_SINGLE_HEADER} --version ${PROJECT_VERSION}
    DEPENDS src/cmake/amalgamate.py LICENSE ${amalgamated} VERBATIM)
  add_custom_target(kvpack_single_header ALL DEPENDS ${KVPACK_SINGLE_HEADER})
  add_dependencies(all_but_tests kvpack_single_header)
  install(FILES ${KVPACK_SINGLE_HEADER} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endif()

# The file finds its own prefix, so that an installation can be moved and staged.
file(RELATIVE_PATH KVPACK_PC_TO_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(src/cmake/kvpack_c.pc.in ${PROJECT_BINARY_DIR}/kvpack_c.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvpack_c.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
