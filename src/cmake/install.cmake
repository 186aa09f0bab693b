# What `cmake --install` gives: headers, both libraries, the tool, a CMake package and a pkg-config file.
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

# The file finds its own prefix, so that an installation can be moved and staged.
file(RELATIVE_PATH KVPACK_PC_TO_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(src/cmake/kvpack_c.pc.in ${PROJECT_BINARY_DIR}/kvpack_c.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvpack_c.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
